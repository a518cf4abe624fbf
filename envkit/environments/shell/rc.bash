# shellcheck shell=bash
# The start of an interactive shell inside an environment, given to bash as --rcfile: the person's own
# settings first, then the environment, so that nothing in the settings hides it.
# ENVKIT_WORDS holds the file that enters and its arguments, as for enter.sh, one per line; ENVKIT_NAME the name to show
# in the prompt.

if [ -r ~/.bashrc ]; then
    # shellcheck source=/dev/null
    . ~/.bashrc
fi
# shellcheck disable=SC2153
mapfile -t envkit_words <<<"$ENVKIT_WORDS"
# shellcheck source=/dev/null
. "${BASH_SOURCE[0]%/*}/${envkit_words[0]}" "${envkit_words[@]:1}"
# bash runs what it finds in PS1
PS1="(envkit ${ENVKIT_NAME//[^A-Za-z0-9_.+\/ -]/?}) ${PS1-\\$ }"
if [ -n "${ENVKIT_BASH_ENV-}" ]; then
    export BASH_ENV=$ENVKIT_BASH_ENV
fi
unset ENVKIT_BASH_ENV ENVKIT_WORDS envkit_words
