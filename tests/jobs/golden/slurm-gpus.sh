#!/bin/bash
# pytorch-cuda on 4 nodes with 4 ranks each, one per GPU. Written by envkit VERSION.
# Submit it with: sbatch FILE
# A site.
# Two lines.
#SBATCH --job-name=pytorch-cuda
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=16
#SBATCH --time=1-03:46:40
#SBATCH --account="project 1"
#SBATCH --partition=gpu
#SBATCH --array=0-7%2
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH "--comment=a # b"
set -euo pipefail

export ENVKIT_PREFIX=/home/me/envs
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"
echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restarts: ${SLURM_RESTART_COUNT:-0}"

# Do these nodes work? If not, the job ends here, with the status of the verdict.
srun --mpi=pmix_v4 --export=ALL --cpus-per-task=16 --cpu-bind=map_cpu:1,2 --kill-on-bad-exit=0 /opt/envkit/bin/envkit verify pytorch-cuda

# The command, once per rank; its status is the job's.
srun --mpi=pmix_v4 --export=ALL --cpus-per-task=16 --cpu-bind=map_cpu:1,2 --kill-on-bad-exit=1 /opt/envkit/bin/envkit run pytorch-cuda -- python train.py --data '/data/my files'
