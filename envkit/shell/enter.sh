# shellcheck shell=bash
# Enter a module environment and become a command:
#   bash --noprofile --norc enter.sh WORD... -- COMMAND ARG...
# The WORDs are the arguments of load.sh, one "--" among them. Ends with status 92 when a module cannot be
# loaded, otherwise with the command's own.

envkit_words=() envkit_dashes=0
while :; do
    if [ "$1" = -- ]; then
        envkit_dashes=$((envkit_dashes + 1))
        [ "$envkit_dashes" -lt 2 ] || break
    fi
    envkit_words+=("$1")
    shift
done
shift
# shellcheck source=envkit/shell/load.sh
. "${BASH_SOURCE[0]%/*}/load.sh" "${envkit_words[@]}"
if [ -n "${ENVKIT_BASH_ENV-}" ]; then
    export BASH_ENV=$ENVKIT_BASH_ENV
fi
unset ENVKIT_BASH_ENV ENVKIT_WORDS envkit_words envkit_dashes
exec "$@"
