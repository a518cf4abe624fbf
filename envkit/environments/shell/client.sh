# shellcheck shell=sh
# Become a client of CernVM-FS whose words go to a file, and not among the output of the command that it mounts for:
#   sh client.sh LOG PROGRAM ARG...

envkit_log=$1
shift
exec "$@" >"$envkit_log" 2>&1
