#!/bin/bash
# pytorch-cpu on 2 nodes with 2 ranks each. Written by envkit VERSION.
# Submit it with: qsub FILE
#PBS -S /bin/bash
#PBS -j oe
#PBS -k oed
#PBS -N pytorch-cpu
#PBS -l select=2:ncpus=2:mpiprocs=2:ompthreads=1
#PBS -l place=scatter
set -euo pipefail
cd "$PBS_O_WORKDIR"

# How it ended, for envkit, which removes this: PBS may not keep it.
ended=".envkit-$PBS_JOBID.status"
trap 'echo "$?" >"$ended"' ERR

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
/opt/envkit/bin/envkit verify pytorch-cpu -n 4 --nodes 2

# The command, once per rank; its status is the job's.
/opt/envkit/bin/envkit run pytorch-cpu -n 4 --nodes 2 -- python train.py
echo 0 >"$ended" || true
