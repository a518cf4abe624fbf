# shellcheck shell=bash
# Start ranks with the MPI of a release of EESSI that was entered:
#   bash ranks.sh REPOSITORY [PATTERN COUNT WORD...]... -- COMMAND...
# The COUNT words of the first PATTERN (an extended regular expression) that 'mpirun --version' matches stand before the
# command. Ends with 3 where the modules loaded bring no MPI.

envkit_repository=$1 envkit_launcher=()
shift
envkit_path=$(command -v mpirun)
case $envkit_path in
"$envkit_repository"/*) envkit_told=$(mpirun --version 2>&1) ;;
*) envkit_told= ;;
esac
while [ "$1" != -- ]; do
    if [ -n "$envkit_told" ] && [ "${#envkit_launcher[@]}" = 0 ] && [[ $envkit_told =~ $1 ]]; then
        envkit_launcher=("${@:3:$2}")
    fi
    shift "$((2 + $2))"
done
shift
if [ "${#envkit_launcher[@]}" = 0 ]; then
    envkit_why="There is no mpirun on PATH."
    [ -z "$envkit_path" ] || envkit_why="The first mpirun on PATH is $envkit_path."
    printf 'envkit: %s\n\n  %s\n\nWhat to do: %s\n' \
        "The modules loaded bring no MPI, so there is nothing of EESSI's to start ranks with." "$envkit_why" \
        "Load one that does: --load foss/2023a" >&2
    exit 3
fi
exec "${envkit_launcher[@]}" "$@"
