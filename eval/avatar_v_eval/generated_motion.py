"""The motion that weights make for the persons of cases, without a pixel."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.progress import track
from avatar_v.generate.generator import audio_tokens
from avatar_v.models.conditioner import Conditioner
from avatar_v.motion.own_units import build_style
from avatar_v.motion.vectors import unpack_motion
from avatar_v.sampling.chunks import plan
from avatar_v.sampling.motion_rollout import roll_motion
from avatar_v.types import Style
from avatar_v_eval.cases import Case, prepared_sound
from avatar_v_eval.rollout import Rollout


@torch.inference_mode()
def moved(
    rollout: Rollout, cases: list[Case], num_frames: int, words: str, batch_size: int
) -> list[Float[np.ndarray, "f m"]]:
    """The motion that the weights make for each person after ``num_frames`` frames of the
    reference: the sampler's own passes, chunk by chunk, several persons at once."""
    parts = [cases[i : i + batch_size] for i in range(0, len(cases), batch_size)]
    tracks = []
    for part in track(parts, words):
        tracks += list(_moved_at_once(rollout, part, num_frames).double().numpy())
    return tracks


def _moved_at_once(rollout: Rollout, cases: list[Case], num: int) -> Float[Tensor, "b f m"]:
    pipeline, settings = rollout.pipeline, rollout.pipeline.settings(rollout.request)
    conditioner, num_frames = pipeline.conditioner, cases[0].num_frames
    network = conditioner.motion_net
    assert network is not None
    length = plan(num_frames, chunk_latents=settings.chunk_latents).num_latents
    audio_of = [audio_tokens(conditioner, prepared_sound(c.target), length) for c in cases]
    seeds = [rollout.request_for(case.person_id, case.prompt).sampling.seed for case in cases]
    made = roll_motion(
        network,
        settings,
        conditioner.pack_motion(torch.stack([case.motion[:1] for case in cases])),
        lambda latents: torch.cat([of(latents) for of in audio_of]),
        _style(conditioner, cases, num) if num else None,
        num_frames,
        [torch.Generator().manual_seed(seed) for seed in seeds],
    )
    motion = unpack_motion(made, conditioner.known_stats)
    return motion[:, :num_frames]


def _style(conditioner: Conditioner, cases: list[Case], num_frames: int) -> Style:
    """The style that the beginning of the references' motion tells."""
    motion = torch.stack([case.reference.motion[:num_frames] for case in cases])
    valid = torch.ones(motion.shape[:2], dtype=torch.bool)
    return build_style(conditioner.clip_moments(motion, valid), conditioner.known_stats)
