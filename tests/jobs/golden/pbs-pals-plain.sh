#!/bin/bash
# pytorch-cpu on 2 nodes with 2 ranks each. Written by envkit VERSION.
# Submit it with: qsub FILE
#PBS -S /bin/bash
#PBS -j oe
#PBS -N pytorch-cpu
#PBS -l select=2
#PBS -l place=scatter
set -euo pipefail
cd "$PBS_O_WORKDIR"

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8
echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
mpiexec -n 4 --ppn 2 --cpu-bind depth --depth=8 /opt/envkit/bin/envkit verify pytorch-cpu

# The command, once per rank; its status is the job's.
mpiexec -n 4 --ppn 2 --cpu-bind depth --depth=8 /opt/envkit/bin/envkit run pytorch-cpu -- python train.py
