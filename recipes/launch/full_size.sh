#!/usr/bin/env bash
# Stages 1 to 3 of a full-size model on one node, each behind `avatar-v doctor`, which checks every
# input of a stage before the stage starts. What is done is not done again: a stage goes on from its
# last checkpoint, and one whose weights are there is left out.
# Command:  recipes/launch/full_size.sh                       (these stages, from the repository)
#           STAGES="1_t2v 2_a2v" recipes/launch/full_size.sh --trainer.devices 4
#           DRY_RUN=1 recipes/launch/full_size.sh             (says what it would run)
# Also:     OVERLAY, one file behind each recipe; RECIPES (recipes) and RUNS (runs), two folders.
# The words behind the command are options of every stage.
set -euo pipefail

stages=${STAGES:-1_t2v 2_a2v 3_pictures 3_sft 3_motion}
recipes=${RECIPES:-recipes}
run=${DRY_RUN:+echo}
if [[ -z ${stages//[[:space:]]/} ]]; then
  echo "full_size.sh: STAGES names no stage" >&2
  exit 2
fi

for stage in $stages; do
  words=("$recipes/$stage.yaml")
  if [[ -n ${OVERLAY:-} ]]; then
    words+=("$OVERLAY")
  fi
  weights=${RUNS:-runs}/$stage/weights
  if [[ -e $weights/card.json ]]; then
    echo "$stage: its weights are there, $weights"
    continue
  fi
  $run avatar-v doctor "${words[@]}" -- "$@"
  $run avatar-v run "${words[@]}" "$@" --ckpt_path last
done
