#!/bin/bash
# pytorch-cpu on 2 nodes with 2 ranks each. Written by envkit VERSION.
# Submit it with: sbatch FILE
#SBATCH --job-name=pytorch-cpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -euo pipefail

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restarts: ${SLURM_RESTART_COUNT:-0}"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
srun --mpi=pmix --export=ALL --cpus-per-task=4 --cpu-bind=cores --kill-on-bad-exit=0 /opt/envkit/bin/envkit verify pytorch-cpu

# The command, once per rank; its status is the job's.
srun --mpi=pmix --export=ALL --cpus-per-task=4 --cpu-bind=cores --kill-on-bad-exit=1 /opt/envkit/bin/envkit run pytorch-cpu -- python train.py
