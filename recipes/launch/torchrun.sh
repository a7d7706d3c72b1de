#!/usr/bin/env bash
# One stage on several nodes: call this on each of them, with the same values but NODE_RANK.
# Command:  NODES=4 NODE_RANK=0 HOST=node0 recipes/launch/torchrun.sh recipes/2_a2v.yaml
#           DRY_RUN=1 … says what it would run
# Also:     GPUS (8) a node; PORT (29500). Words behind the recipe are overlays and options.
# Resume:   the same command: it goes on from the last checkpoint, on any number of nodes.
# All nodes need the shards, the weights and runs/ on one file system.
set -euo pipefail

nodes=${NODES:?how many nodes}
gpus=${GPUS:-8}
if ((nodes > 1)); then
  : "${NODE_RANK:?the number of this node, 0 to NODES - 1}"
fi
launch=(
  torchrun --nnodes "$nodes" --node-rank "${NODE_RANK:-0}" --nproc-per-node "$gpus"
  --master-addr "${HOST:?the name or address of node 0}" --master-port "${PORT:-29500}"
  -m avatar_v.cli run "$@"
  --trainer.num_nodes "$nodes" --trainer.devices "$gpus" --ckpt_path last
)
${DRY_RUN:+echo} "${launch[@]}"
