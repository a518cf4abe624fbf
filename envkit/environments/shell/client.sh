# shellcheck shell=sh
# Run a client of CernVM-FS whose words go to a file, and not among the output of the command that it mounts for:
#   sh client.sh LOG PROGRAM ARG...
# What it would tell the system's log is beside it, in a file that ends in .syslog. Both begin anew.

envkit_log=$1
shift
: >"${envkit_log%.log}.syslog"
"$@" >"$envkit_log" 2>&1
envkit_status=$?
if [ "$envkit_status" -ne 0 ]; then
    printf 'The client has ended with status %s\n' "$envkit_status" >>"$envkit_log"
fi
exit "$envkit_status"
