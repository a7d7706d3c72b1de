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
: "${1:?a recipe, such as recipes/2_a2v.yaml}"
for name in nodes gpus; do
  if [[ ! ${!name} =~ ^[1-9][0-9]{0,3}$ ]]; then
    echo "torchrun.sh: ${name^^} is a whole number from 1 to 9999, got ${!name}" >&2
    exit 2
  fi
done
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
