#!/bin/bash
# pytorch-cuda on 2 nodes with 4 ranks each, one per GPU. Written by envkit VERSION.
# Submit it with: qsub FILE
# Polaris: --account is your project; queues: debug (2 nodes at most), debug-scaling (10), prod (10 at least).
#PBS -S /bin/bash
#PBS -j oe
#PBS -N pytorch-cuda
#PBS -l select=2:system=polaris
#PBS -l place=scatter
#PBS -l walltime=27:46:40
#PBS -A project1
#PBS -q debug
#PBS -l filesystems=home:eagle
set -euo pipefail
cd "$PBS_O_WORKDIR"

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
mpiexec -n 8 --ppn 4 --depth=8 --cpu-bind depth /opt/envkit/bin/envkit verify pytorch-cuda

# The command, once per rank; its status is the job's.
mpiexec -n 8 --ppn 4 --depth=8 --cpu-bind depth /opt/envkit/bin/envkit run pytorch-cuda -- python train.py --data '/data/my files'
