"""Measurements of time and memory: `avatar-v-eval speed NAME` runs the module of that name."""

SPEEDS = {
    "throughput": "drawing, training, generation and decoding, with named peers in turns",
    "memory": "memory by the length of a video",
    "training": "tokens a second and MFU of training at full size, on a GPU",
    "block": "a block and a step against diffusers' Wan, and backends of attention, on a GPU",
    "live": "first frame, steady rate and jitter on a sound at its own pace",
    "cache": "sampling with the cached keys and values of the reference, and without",
    "reference": "Sparse Reference Attention against attention without segments",
    "distilled": "generation with guided steps and with a student of few steps",
    "plan": "memory and operations that `avatar-v plan` foresees, against a real step",
    "alignment": "rollout, rewards and update of a step of GRPO, and its memory",
    "losses": "the perceptual losses in a training step",
    "full_size": "a step of each stage, a chunk and a sharded checkpoint at full size",
    "loader": "the index of a million clips, and a full-size clip against a planned step",
    "commit": "generation by the code as it is beside an earlier commit's",
    "timestep": "causal weights by ranks with steps of their own, beside one process",
    "offload": "`--offload` on a GPU: switches, passes and peak memory",
}
"""Name → one line, in the order of the list."""
