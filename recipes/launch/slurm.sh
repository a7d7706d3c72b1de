#!/usr/bin/env bash
# One stage under SLURM: a task for each GPU, which Lightning takes over.
# Command:  sbatch --nodes 4 recipes/launch/slurm.sh recipes/2_a2v.yaml
# Also:     options of sbatch override those below. Words behind the recipe are overlays and options.
# Resume:   the same command: it goes on from the last checkpoint. SLURM starts a job again whose
#           node failed (--requeue), which does the same.
# All nodes need the shards, the weights and runs/ on one file system.
#SBATCH --job-name=avatar_v
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=SIGTERM@120
#SBATCH --output=%x-%j.log
set -euo pipefail

: "${1:?a recipe, such as recipes/2_a2v.yaml}"
export OMP_NUM_THREADS=1
${DRY_RUN:+echo} srun --kill-on-bad-exit=1 avatar-v run "$@" \
  --trainer.num_nodes "${SLURM_NNODES:-1}" --trainer.devices "${SLURM_NTASKS_PER_NODE:-8}" \
  --ckpt_path last
