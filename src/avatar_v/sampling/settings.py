"""The numbers of sampling: lengths, steps, guidance, and how chunks join."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import schedule
from avatar_v.models.config import Streaming
from avatar_v.sampling.motion import LEAST_MOTION_STEPS
from avatar_v.sampling.solver import Step, overshoot, renoise


@dataclass(frozen=True)
class Settings:
    """The settings of the sampler for a video, from the request and the weights."""

    chunk_latents: int  # 13 for the small preset, 41 at full size
    num_steps: int = 24  # Avatar V §4.2
    shift: float = 1.0  # of the sampling times (flow.shift_time)
    guidance_text: float = 1.0
    guidance_audio: float = 2.0
    guidance_reference: float = 1.0
    guidance_motion: float = 1.0  # of the person's style in motion (motion.guided_motion)
    motion_steps: int | None = None
    """Steps of a few-step motion network, which has guidance inside; None: as those of the video,
    and not fewer than motion.LEAST_MOTION_STEPS."""
    overshoot: float = 0.0  # c of solver.overshoot
    renoise: bool = False  # steps of the video go to x_0 and back: those of few-step students
    from_prompt: bool = False  # the first chunk has no prefix: its first frame is made, too
    anchor: bool = False  # the first latent joins the reference of later chunks
    blend: bool = True  # the first latents of a chunk move away from where the one before ended
    interpolate: bool = False
    """N and I chunks; for weights whose training drew suffixes (suffix_share)."""
    seed: int = 0
    bf16: bool = False  # autocast of sampling and decoding; encoding stays in fp32
    window_latents: int | None = None
    """Latents of a training window, where a causal network makes other chunks; None: of a chunk.
    """
    look_ahead: int = 0
    """Latents behind a chunk over which its motion is made, too, where their sound is there."""
    streaming: Streaming = Streaming()  # noqa: RUF009 of a causal network

    @property
    def step(self) -> Step:
        """The step of the video."""
        return renoise if self.renoise else overshoot(self.overshoot)

    @property
    def motion_step(self) -> Step:
        """The step of the motion."""
        return overshoot(self.overshoot) if self.motion_steps is None else renoise

    @property
    def motion_weights(self) -> tuple[float, float]:
        """Guidance of the motion: of the sound, and of the person's style."""
        if self.motion_steps is None:
            return self.guidance_audio, self.guidance_motion
        return 1.0, 1.0

    @property
    def motion_times(self) -> Float[Tensor, " steps_plus_1"]:
        """The times of the motion, from 1 to 0."""
        steps = self.motion_steps or max(self.num_steps, LEAST_MOTION_STEPS)
        return schedule(steps, shift=self.shift)

    def times(self, num_moves: int | None = None) -> Float[Tensor, " moves_plus_1"]:
        """The times of the video, from 1 to 0: of all steps, or of the first ``num_moves``, whose
        last goes to 0. ValueError for more moves than there are steps."""
        times = schedule(self.num_steps, shift=self.shift)
        if num_moves is None:
            return times
        if not 1 <= num_moves <= self.num_steps:
            raise ValueError(f"{num_moves} moves of {self.num_steps} steps")
        return torch.cat([times[:num_moves], times[-1:]])
