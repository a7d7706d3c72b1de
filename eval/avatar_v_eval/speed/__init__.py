"""Measurements of time and memory: `avatar-v-eval speed NAME` runs the module of that name."""

SPEEDS = {
    "throughput": "drawing, training, generation and decoding, with named peers in turns",
    "memory": "memory by the length of a video",
    "live": "first frame, steady rate and jitter on a sound at its own pace",
    "cache": "sampling with the cached keys and values of the reference, and without",
    "reference": "Sparse Reference Attention against attention without segments",
    "distilled": "generation with guided steps and with a student of few steps",
    "plan": "memory and operations that `avatar-v plan` foresees, against a real step",
    "losses": "the perceptual losses in a training step",
    "loader": "the index of a million clips, and a full-size clip against a planned step",
    "offload": "`--offload` on a GPU: switches, passes and peak memory",
}
"""Name → one line, in the order of the list."""
