# shellcheck shell=bash
# The start of an interactive shell inside an environment, given to bash as --rcfile: the person's own
# settings first, then the environment, so that nothing in the settings hides it.
# ENVKIT_WORDS holds the file that enters and its arguments, as for enter.sh, one per line; ENVKIT_NAME the name to show
# in the prompt.

if [ -r ~/.bashrc ]; then
    # A file that becomes another shell would take the environment, and the command to be run, away: it may not.
    # shellcheck disable=SC2329
    envkit_stay() {
        [[ $BASH_COMMAND =~ ^exec\ +[0-9]*[\<\>{\&] ]] && return 0
        [[ $BASH_COMMAND =~ ^exec\ .*(zsh|fish|dash|ksh|csh|xonsh|elvish|SHELL) ]] || return 0
        printf 'envkit: ~/.bashrc would become another shell, without the environment, and may not: %s\n' \
            "$BASH_COMMAND" >&2
        return 1
    }
    trap envkit_stay DEBUG
    shopt -s extdebug # what the trap fails for is left out
    # shellcheck source=/dev/null
    . ~/.bashrc
    shopt -u extdebug
    case $(trap -p DEBUG) in *envkit_stay*) trap - DEBUG ;; esac
    unset -f envkit_stay
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
