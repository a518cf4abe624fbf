#!/bin/bash
# pytorch-cuda on 4 nodes with 4 ranks each, one per GPU. Written by envkit VERSION.
# Submit it with: qsub FILE
# A site.
# Two lines.
#PBS -S /bin/bash
#PBS -j oe
#PBS -N pytorch-cuda
#PBS -l select=4:ncpus=64:mpiprocs=4:ompthreads=16:ngpus=4:gpu_type=a100:cluster=a
#PBS -l place=scatter
#PBS -l walltime=27:46:40
#PBS -A project1
#PBS -q gpu
set -euo pipefail
cd "$PBS_O_WORKDIR"

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
/opt/envkit/bin/envkit verify pytorch-cuda -n 16 --nodes 4

# The command, once per rank; its status is the job's.
/opt/envkit/bin/envkit run pytorch-cuda -n 16 --nodes 4 -- python train.py --data '/data/my files'
