# shellcheck shell=bash
# Become a program that mounts for a command, with its words on standard error; the command has the standard output:
#   bash aside.sh PROGRAM ARG... -- COMMAND...
#   bash aside.sh --back NUMBER COMMAND...       what PROGRAM is given as its command

if [ "$1" = --back ]; then
    envkit_out=$2
    shift 2
    exec "$@" >&"$envkit_out" {envkit_out}>&-
fi
envkit_program=()
while [ "$1" != -- ]; do
    envkit_program+=("$1")
    shift
done
shift
exec {envkit_out}>&1 >&2
exec "${envkit_program[@]}" -- bash --noprofile --norc "${BASH_SOURCE[0]}" --back "$envkit_out" "$@"
