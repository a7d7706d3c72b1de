"""From noise to the latents of a video: solver, guidance, plan of chunks, rollout."""
