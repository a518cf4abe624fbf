#!/bin/sh
# Run a command in the first task of a step of Slurm alone.
[ "$SLURM_PROCID" != 0 ] || exec "$@"
