#!/bin/bash
# pytorch-cpu on 2 nodes with 2 ranks each. Written by envkit VERSION.
# Submit it with: sbatch FILE
#SBATCH --job-name=pytorch-cpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -euo pipefail

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((SLURM_CPUS_ON_NODE / 2))}"
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restarts: ${SLURM_RESTART_COUNT:-0}"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
/opt/envkit/bin/envkit verify pytorch-cpu -n 4 --nodes 2

# The command, once per rank; its status is the job's.
/opt/envkit/bin/envkit run pytorch-cpu -n 4 --nodes 2 -- python train.py
