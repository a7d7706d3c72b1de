"""Measurements of time and memory: `avatar-v-eval speed NAME` runs the module of that name."""

SPEEDS = {
    "throughput": "drawing, training, generation and decoding, with named peers in turns",
    "memory": "memory by the length of a video",
    "live": "first frame, steady rate and jitter on a sound at its own pace",
    "plan": "memory and operations that `avatar-v plan` foresees, against a real step",
    "device": "training, a denoising step, references and a change of networks, on one card",
    "kernels": "fused kernels and a block: torch, torch.compile, ours and diffusers in turns",
    "evolve": "a search for kernels: candidates, their check, and the winner timed again",
    "exchange": "exchanges of sequence parallelism beside computing, over simulated links",
    "timestep": "a line of ranks with steps of their own, beside its slowest rank alone",
    "rating": "a hundred raters at once on the rating page, through kills of its servers",
    "serving": "many clients at a server of videos, through kills of its workers and of itself",
    "person": "a person as a file: seconds until it is known, bytes, and whether frames are equal",
    "sets": "several sets of weights in one process: bytes, and from one to another",
    "full_size": "a chunk at full size: first frame, rate and memory",
}
"""Name → one line, in the order of the list."""
