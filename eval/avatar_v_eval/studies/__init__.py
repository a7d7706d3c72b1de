"""Measurements of quality: `avatar-v-eval study NAME` runs the module of that name."""

STUDIES = {
    "critics": "the critics themselves, on test persons and through the VAE",
    "learning": "lip-sync and identity of generated video on held-out persons",
    "personality": "motion statistics, identity and lips by the length of the reference video",
    "motion_prior": "motion statistics of the motion stream, without a pixel",
    "motion_meter": "the motion statistics that the motion meter reads, against the truth",
    "drift": "identity, colours and lips of long videos, and the seams of their chunks",
    "guidance": "guidance in one pass against guidance in several",
    "distill": "students of few steps beside their teacher",
    "align_grpo": "habits of the motion before and after GRPO, beside controls",
    "align_dpo": "preferences of simulated raters and habits, before and after DPO",
    "reward_signal": "what rewards can teach, before anything is trained",
    "preference": "the preference model against raters whose values are known",
    "sampling": "steps and overshoot of the sampler",
    "refiner": "the super-resolution refiner against bicubic enlarging",
    "vae": "the video autoencoder, on drawn people and on real faces",
    "own_face": "a real face from one clip: trained, generated and scored",
    "known_people": "the warning about people whom the weights do not know",
    "world70": "the order in which the benchmark's metrics put known systems",
    "shortcuts": "loudness, mean colours and single frames as shortcuts on the world",
    "watermark": "the mark in generated frames: what it survives, and what it changes",
    "watermark_peers": "marks of other libraries in small frames",
    "demo": "`avatar-v demo` as a whole command, and its picture",
    "prompt_sheet": "a picture of people in the scenes of prompts",
    "curves": "a picture of the loss curves of the shipped weights",
}
"""Name → one line, in the order of the list."""
