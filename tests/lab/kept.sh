#!/usr/bin/env bash
# Run a command as one rank, and leave its status in a file of that rank's number in the folder $KEPT.
trap : TERM INT HUP
"$@" &
wait $! && status=0 || status=$?
while kill -0 $! 2>/dev/null; do
    wait $! && status=0 || status=$?
done
echo "$status" >"$KEPT/${OMPI_COMM_WORLD_RANK:-${HOROVOD_RANK:-${PMI_RANK:-$SLURM_PROCID}}}"
exit "$status"
