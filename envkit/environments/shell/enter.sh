# shellcheck shell=bash
# Enter an environment and become a command:
#   bash --noprofile --norc enter.sh LOADER WORD... -- COMMAND ARG...
# LOADER is the file beside this one that enters, load.sh or eessi.sh; the WORDs are its arguments, one "--" among
# them. Ends with status 92 when a module cannot be loaded, 126 when the command is an empty file, otherwise with the
# command's own.

envkit_loader=$1 envkit_words=() envkit_dashes=0
shift
while :; do
    if [ "$1" = -- ]; then
        envkit_dashes=$((envkit_dashes + 1))
        [ "$envkit_dashes" -lt 2 ] || break
    fi
    envkit_words+=("$1")
    shift
done
shift
# shellcheck source=/dev/null
. "${BASH_SOURCE[0]%/*}/$envkit_loader" "${envkit_words[@]}"
if [ -n "${ENVKIT_BASH_ENV-}" ]; then
    export BASH_ENV=$ENVKIT_BASH_ENV
fi
envkit_program=$(type -P -- "$1")
if [ -f "$envkit_program" ] && [ ! -s "$envkit_program" ]; then # bash would end with 0
    echo "envkit: exec: $envkit_program: cannot execute: the file is empty" >&2
    exit 126
fi
unset ENVKIT_BASH_ENV ENVKIT_WORDS envkit_loader envkit_words envkit_dashes envkit_program
exec "$@"
