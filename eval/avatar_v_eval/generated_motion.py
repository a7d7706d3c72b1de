"""The motion that weights make for the persons of cases, without a pixel."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.progress import track
from avatar_v.generate.generator import audio_tokens
from avatar_v.models.conditioner import Conditioner
from avatar_v.motion.own_units import build_style
from avatar_v.motion.vectors import unpack_motion
from avatar_v.sampling.chunks import Span, plan
from avatar_v.sampling.motion_rollout import roll_motion
from avatar_v.types import Style
from avatar_v_eval.cases import Case, prepared_sound
from avatar_v_eval.rollout import Rollout


@torch.inference_mode()
def moved(
    rollout: Rollout,
    cases: list[Case],
    num_frames: int,
    words: str,
    batch_size: int,
    heard: Sequence[Float[Tensor, " s"]] | None = None,
) -> list[Float[np.ndarray, "f m"]]:
    """The motion that the weights make for each person after ``num_frames`` frames of the
    reference: the sampler's own passes, chunk by chunk, several persons at once. ``heard``: the
    voice that each person listens to, as models take it."""
    parts = [slice(i, i + batch_size) for i in range(0, len(cases), batch_size)]
    tracks = []
    for part in track(parts, words):
        others = None if heard is None else heard[part]
        made = _moved_at_once(rollout, cases[part], num_frames, others)
        tracks += list(made.double().numpy())
    return tracks


def _moved_at_once(
    rollout: Rollout, cases: list[Case], num: int, heard: Sequence[Float[Tensor, " s"]] | None
) -> Float[Tensor, "b f m"]:
    pipeline, settings = rollout.pipeline, rollout.pipeline.settings(rollout.request)
    conditioner, num_frames = pipeline.conditioner, cases[0].num_frames
    network = conditioner.motion_net
    assert network is not None
    length = plan(num_frames, chunk_latents=settings.chunk_latents).num_latents

    def tokens(sounds: Sequence[Tensor]) -> Callable[[Span], Tensor]:
        of_each = [audio_tokens(conditioner, sound, length) for sound in sounds]
        return lambda latents: torch.cat([of(latents) for of in of_each])

    seeds = [rollout.request_for(case.person_id, case.prompt).sampling.seed for case in cases]
    made = roll_motion(
        network,
        settings,
        conditioner.pack_motion(torch.stack([case.motion[:1] for case in cases])),
        tokens([prepared_sound(case.target) for case in cases]),
        _style(conditioner, cases, num) if num else None,
        num_frames,
        [torch.Generator().manual_seed(seed) for seed in seeds],
        None if heard is None else tokens(heard),
    )
    motion = unpack_motion(made, conditioner.known_stats)
    return motion[:, :num_frames]


def _style(conditioner: Conditioner, cases: list[Case], num_frames: int) -> Style:
    """The style that the beginning of the references' motion tells."""
    motion = torch.stack([case.reference.motion[:num_frames] for case in cases])
    valid = torch.ones(motion.shape[:2], dtype=torch.bool)
    return build_style(conditioner.clip_moments(motion, valid), conditioner.known_stats)
