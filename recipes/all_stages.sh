#!/usr/bin/env bash
# The chain: every part that the weights that ship are made of, from nothing, in order.
# Command:  recipes/all_stages.sh              a night or two on 2 CPU cores (not run to its end yet)
#           SIZE=tiny recipes/all_stages.sh    minutes: the same parts on a handful of clips, for a test
#           LAST=1_t2v recipes/all_stages.sh   ends after that part; an unknown name lists all parts
# Leaves:   the folder WORK (runs/all_stages, or runs/all_stages_tiny) with all shards and runs; in it
#           times.csv, a row for each part, and assets/, laid out like src/avatar_v/assets
# Resume:   the same command: finished parts are left out, and a training goes on from its last
#           checkpoint; the critics keep none. Ctrl-C and SIGTERM end the part that runs.
# A stage:  is one line, train RECIPE DATA OPTIONS. The commands run in WORK, so nothing that ships is read.
set -euo pipefail

SIZE=${SIZE:-small}
RECIPES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case $SIZE in
  small) side=64 runs=runs most_clips=1000000 most_frames=1000000 ;;
  tiny) side=32 runs=runs/tiny most_clips=8 most_frames=33 ;;
  *) echo "all_stages.sh: SIZE is small or tiny, got $SIZE" >&2; exit 2 ;;
esac
[[ $SIZE == small ]] && default=runs/all_stages || default=runs/all_stages_tiny
WORK=${WORK:-$default}
WORKERS=${WORKERS:-2} # processes that draw
LAST=${LAST:-assemble}
child='' stopped='' listing=''

fail() { # MESSAGE
  echo "all_stages.sh: $1" >&2
  exit 2
}

part() { # NAME LEAVES COMMAND…: once, and the end of the chain if it is the last that is asked for
  if [[ -n $listing ]]; then echo "$1"; return; fi
  once "$@"
  [[ $1 != "$LAST" ]] || { echo "all parts up to $1 are made in $WORK, times in its times.csv"; exit; }
}

once() { # NAME LEAVES COMMAND…: unless it was made; LEAVES is what it makes
  local name=$1 leaves=$2 stamp=done/$1 begun=$SECONDS status=0 ended=done
  shift 2
  if [[ -e $stamp ]]; then
    [[ $(<"$stamp") == "$*" ]] || fail "$WORK/$stamp: $name was made by another command ($(<"$stamp")); \
remove this file and what the part made to make it anew"
    return 0
  fi
  echo "== $name"
  "$@" &
  child=$!
  echo "$child" > running
  wait "$child" || status=$?
  [[ -z $stopped ]] || wait "$child" || true # the signal ended the first wait
  rm -f running
  if [[ -n $stopped ]]; then ended=stopped status=130; elif ((status)); then ended=failed; fi
  echo "$name,$(date -u +%FT%TZ),$((SECONDS - begun)),$ended" >> times.csv
  ((status == 0)) || { echo "all_stages.sh: $name $ended; the same command goes on" >&2; exit "$status"; }
  [[ -e $leaves ]] || fail "$name left no $WORK/$leaves; if its last checkpoint is that of the last step, \
remove the checkpoints beside it"
  printf '%s\n' "$*" > "$stamp.part"
  mv "$stamp.part" "$stamp"
}

draw() { # FOLDER SPLIT CLIPS FRAMES OPTIONS…: shards of drawn people in FOLDER/SPLIT
  local out=$1/$2 split=$2 clips=$(($3 < most_clips ? $3 : most_clips))
  local frames=$(($4 < most_frames ? $4 : most_frames))
  shift 4
  part "draw_${out//\//_}" "$out" world --out "$out" --split "$split" --clips "$clips" \
    --frames "$frames" --size "$side" "$@"
}

world() { exec avatar-v-data world --workers "$WORKERS" "$@"; } # their number changes no bytes

encode() { # SHARDS LATENTS OPTIONS…: the latents of all shards below SHARDS
  part "encode_${2//\//_}" "$2/train" avatar-v shards encode --shards "$1" --out "$2" --vae "$vae" \
    --drop-video "${@:3}"
}

train() { # RECIPE DATA OPTIONS…: train on DATA/train, with the overlay of this size
  local recipe=$1 data=$2 leaves=weights from=()
  shift 2
  [[ $recipe == *vae* || $recipe == *_decoder ]] && leaves=vae
  [[ $data == *latents* ]] && from=(--data.init_args.decode_video false)
  part "$recipe" "$runs/$recipe/$leaves" recipe "$recipe" \
    --data.init_args.train "$data/train" --data.init_args.validation "$data/validation" \
    "${from[@]}" "$@"
}

recipe() { # in place of the subshell of its part, so that a signal reaches it
  local words=(avatar-v run "$RECIPES/$1.yaml" "$RECIPES/$SIZE.yaml" "${@:2}")
  if compgen -G "$runs/$1/checkpoints/*.ckpt" > /dev/null; then
    echo "$1 goes on from its last checkpoint"
    words+=(--ckpt_path last)
  fi
  exec "${words[@]}"
}

critic() { # NAME TRAIN VALIDATION OPTIONS…: TRAIN is a list of folders
  local name=$1 data=(--data.init_args.train "$2" --data.init_args.validation "$3")
  shift 3
  part "critic_$name" "runs/critic_$name/$name" avatar-v run "$RECIPES/critic_$name.yaml" "${data[@]}" "$@"
}

init_from() { echo "--model.init_args.models.init_from=$runs/$1/weights"; } # RECIPE

assemble() { # what ships, laid out like src/avatar_v/assets; whole or not at all
  rm -rf assets.part refiner.whole && mkdir -p assets.part/critics
  avatar-v weights decoder "$runs/refiner/weights" "$runs/refiner_decoder/vae" --out refiner.whole
  cp "$runs/refiner/weights/"{loss.csv,recipe.yaml} refiner.whole
  slim "$runs/3_motion/weights" small dit=0 vae=0 text=0 audio=0 motion=0
  slim "$runs/4b_distill_dmd/weights" small_student dit=8e-4 --base assets.part/small
  slim refiner.whole small_refiner dit=4.2e-3 vae=1.2e-3 text=2e-2 audio=1e-2 --base assets.part/small
  for name in face motion sync; do cp -r "runs/critic_$name/$name" "assets.part/critics/$name"; done
  mv assets.part assets
}

slim() { # WEIGHTS NAME ERRORS…: in fewer bytes
  avatar-v weights slim "$1" --out "assets.part/$2" --error "${@:3}"
}

few=() few_pairs=() few_windows=() stills=() terms=() of_student=()
if [[ $SIZE == tiny ]]; then
  few=(--trainer.max_steps 2 --data.init_args.batches_per_epoch 2)
  few_pairs=("${few[@]}" --data.init_args.persons_per_batch 2 --data.init_args.scenes_per_person 2)
  few_windows=("${few[@]}" --data.init_args.clips_per_batch 2 --data.init_args.windows_per_clip 8
    --data.init_args.num_frames 13)
  stills=(--model.init_args.personality.stills_share 1.0)
  terms=(--model.init_args.perceptual.identity '{0: 0.05}' --model.init_args.perceptual.motion '{0: 0.05}'
    --model.init_args.perceptual.sync '{0: 0.05}')
  of_student=(--model.init_args.exploration.sampler student --model.init_args.exploration.num_steps 2
    --model.init_args.exploration.window 1 --model.init_args.exploration.shift 1.0
    --model.init_args.guidance.motion 1.0)
fi

chain() {
  # the video VAE, and its decoder once more
  draw shards/vae train 1600 25 --clips-per-person 2 --seed 7
  draw shards/vae validation 32 25 --clips-per-person 2
  draw shards/decoder train 2400 25 --clips-per-person 2 --seed 11
  train 0_vae shards/vae
  train 0_vae_decoder shards/decoder --data.init_args.validation shards/vae/validation \
    --model.init_args.init_from "$runs/0_vae/vae"
  vae=$runs/0_vae_decoder/vae

  # stages 1 and 2
  draw runs/shards/short train 960 81
  draw runs/shards/short validation 48 81
  encode runs/shards/short runs/latents/short
  train 1_t2v runs/latents/short --model.init_args.models.vae "$vae" \
    --model.init_args.objective.resolution '{0: 1.0}'
  train 2_a2v runs/latents/short "$(init_from 1_t2v)"

  # the critics that stage 3 is trained against
  draw runs/shards/critic train 6400 13 --clips-per-person 2 --seed 21
  draw runs/shards/critic validation 128 25
  draw runs/shards/face train 1536 81 --clips-per-shard 48
  encode runs/shards/critic runs/latents/critic
  critic face '[runs/shards/face/train]' '[runs/shards/critic/validation]' "${few_pairs[@]}"
  critic motion '[runs/shards/critic/train, runs/latents/critic/train]' '[runs/shards/critic/validation]' \
    --data.init_args.vae "$vae" "${few_pairs[@]}"
  critic sync '[runs/shards/short/train]' '[runs/shards/critic/validation]' "${few_windows[@]}"

  # stage 3: pictures, personality, motion
  draw runs/shards/images train 6000 5 --seed 21
  draw runs/shards/images validation 120 5 --clips-per-person 2
  encode runs/shards/images runs/latents/images --stills
  draw runs/shards/long train 960 401 --clips-per-person 2
  draw runs/shards/long validation 48 401 --clips-per-person 2
  encode runs/shards/long runs/latents/long --stills
  part stats runs/shards/motion.json \
    avatar-v shards stats runs/shards/long/train --out runs/shards/motion.json
  train 3_pictures runs/latents/images "$(init_from 2_a2v)" \
    --model.init_args.models.motion_stats runs/shards/motion.json "${stills[@]}"
  train 3_sft runs/latents/long "$(init_from 3_pictures)" "${stills[@]}" "${terms[@]}" \
    --model.init_args.perceptual.face_critic runs/critic_face/face \
    --model.init_args.perceptual.motion_meter runs/critic_motion/motion \
    --model.init_args.perceptual.sync_critic runs/critic_sync/sync
  draw runs/shards/motion train 3000 401 --clips-per-person 2 --motion-only --seed 41
  draw runs/shards/motion validation 64 401 --clips-per-person 2 --motion-only
  train 3_motion runs/shards/motion "$(init_from 3_sft)"

  # stage 4
  train 4a_distill_cfg runs/latents/long "$(init_from 3_motion)" "${stills[@]}"
  train 4b_distill_dmd runs/latents/long "$(init_from 4a_distill_cfg)" "${stills[@]}"
  train 4c_distill_motion runs/shards/motion "$(init_from 4b_distill_dmd)"
  train 4d_causal_forcing runs/latents/long "$(init_from 3_motion)" "${stills[@]}"
  train 4e_self_forcing runs/latents/long "$(init_from 3_motion)" "${stills[@]}" \
    --model.init_args.student.causal_weights "$runs/4d_causal_forcing/weights"

  # stage 5, of the student: pictures and motion
  draw runs/shards/chunk train 192 49
  draw runs/shards/chunk validation 24 49
  encode runs/shards/chunk runs/latents/chunk
  train 5a_grpo_video runs/latents/chunk "$(init_from 4b_distill_dmd)"
  train 5a_grpo runs/shards/motion "$(init_from 4c_distill_motion)" "${of_student[@]}"

  # the refiner, of twice the size
  side=$((2 * side))
  draw runs/shards/refiner train 2400 17 --clips-per-person 2 --seed 3
  draw runs/shards/refiner validation 64 17 --clips-per-person 2 --seed 3
  encode runs/shards/refiner runs/latents/refiner --low --bf16
  train refiner runs/latents/refiner "$(init_from 3_sft)"
  train refiner_adversarial runs/latents/refiner "$(init_from refiner)"
  train refiner_decoder runs/shards/refiner --model.init_args.init_from "$vae"

  part assemble assets assemble
}

command -v avatar-v > /dev/null || fail "the command avatar-v is not on the PATH (. .venv/bin/activate)"
parts=$(listing=1 chain)
[[ $'\n'$parts$'\n' == *$'\n'"$LAST"$'\n'* ]] || \
  fail "LAST is one of ${parts//$'\n'/ }, got $LAST"
mkdir -p "$WORK/done"
cd "$WORK"
if [[ -e running && $(ps -o stat= -p "$(<running)" 2> /dev/null) == [!Z]* ]]; then # Z: dead, not buried
  fail "a part of $WORK still runs, as process $(<running)"
fi
[[ -e times.csv ]] || echo part,ended_at,took_s,ended > times.csv
trap 'stopped=1; [[ -z $child ]] || kill -TERM "$child" 2> /dev/null || true' INT TERM

chain
