"""Classifier-free guidance over reference, text and audio, nested, in one batched forward.

``v = v(∅) + w_ref [v(ref) - v(∅)] + w_txt [v(ref, txt) - v(ref)] + w_aud [v(ref, txt, aud) - v(ref,
txt)]``; without a reference the second term is left out.

The convention is ``uncond + w (cond - uncond)``: w = 1 is no guidance, w = 0 drops the condition.
Public code often means ``cond + w (cond - uncond)``; subtract 1 before comparing numbers.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.models.own_units import SCALED
from avatar_v.models.reference import ReferenceCache
from avatar_v.types import Cond

GuidedFn = Callable[..., Any]
"""``v = fn(x_t, t)``, with the motion stream ``v, v_motion = fn(x_t, t, motion_t)``; of motion
before its video ``v_motion = fn(None, t, motion_t)``, of the video once its motion is there
``v = fn(x_t, t, motion, known=True)``."""


@dataclass(frozen=True)
class Stream:
    """One pass of the network and the factor of its velocity in the guided sum."""

    has_reference: bool
    has_text: bool
    has_audio: bool
    factor: float

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What the pass is given: reference, text, audio."""
        return self.has_reference, self.has_text, self.has_audio


def streams(
    *,
    text: float,
    audio: float,
    reference: float = 1.0,
    has_audio: bool = True,
    has_reference: bool = False,
) -> tuple[Stream, ...]:
    """The passes that matter: the nested sum, collected by pass, without the zero factors.

    ``(1 - w_ref) v(∅) + (w_ref - w_txt) v(ref) + (w_txt - w_aud) v(ref, txt) + w_aud v(all)``: no
    guidance is one pass, one guided condition is two, and equal weights cancel the pass between.
    What the request does not have, audio or a reference, has no term of its own.
    """
    kept = has_reference
    weights = [(kept, True, True, audio)] if has_audio else []
    weights.append((kept, True, False, text))
    if has_reference:
        weights.append((True, False, False, reference))
    weights.append((False, False, False, 1.0))
    after = [0.0, *(weight[3] for weight in weights[:-1])]
    passes = zip(weights, after, strict=True)
    found = [Stream(*weight[:3], factor=weight[3] - before) for weight, before in passes]
    return tuple(stream for stream in found if stream.factor != 0)


def guided(
    dit: nn.Module,
    cond: Cond,
    *,
    text: float,
    audio: float,
    reference: float = 1.0,
    motion: float = 1.0,
    no_text: Float[Tensor, "b n d"] | None = None,
    cache: ReferenceCache | None = None,
) -> GuidedFn:
    """The guided velocity of ``dit`` under ``cond``, of video, motion or both.

    ``motion`` is how strongly habits count: the motion stream's velocity has ``motion - 1`` times
    ``v(ref, txt, aud) - v(txt, aud)`` added to it, where there is a reference; the video's has not.
    Alone, it has none of that in components that are made in units of the person's own
    (own_units.SCALED): they are as large as they should be. Passes that what is wanted does not
    need are left out.
    ``no_text`` is the encoding of "" with the shape of ``cond.text``; ValueError where a weight
    asks for the pass without text and it is missing or of another shape. ``cache`` is the encoded
    reference of the request, in the place of ``cond.reference``.
    """
    has_reference = cache is not None or cond.reference is not None
    has_audio = cond.audio is not None
    for_video = streams(
        text=text,
        audio=audio,
        reference=reference,
        has_audio=has_audio,
        has_reference=has_reference,
    )
    if any(not stream.has_text for stream in for_video):
        _check_no_text(cond, no_text, text)
    for_motion = _with_habits(for_video, motion, has_audio) if has_reference else for_video
    network = dit if cache is None else functools.partial(dit, reference_cache=cache)

    @functools.cache
    def joined(*wanted: tuple[Stream, ...]) -> tuple[Cond, list[list[float]]]:
        """Conditions of all passes of these sums, and the factors of the passes in each."""
        kinds = list(dict.fromkeys(stream.kind for sum_ in wanted for stream in sum_))
        factors = [dict.fromkeys(kinds, 0.0) | {s.kind: s.factor for s in sum_} for sum_ in wanted]
        passes = tuple(Stream(*kind, factor=1.0) for kind in kinds)
        joint = _joint_cond(cond, passes, no_text, has_reference=has_reference)
        return joint, [list(of.values()) for of in factors]

    def velocity_fn(
        x_t: Tensor | None, t: Tensor, motion_t: Tensor | None = None, *, known: bool = False
    ):
        wanted = (for_video,) if motion_t is None or known else (for_video, for_motion)
        joint, factors = joined(*wanted)
        num = len(factors[0])
        x, times = None if x_t is None else x_t.repeat(num, 1, 1, 1, 1), t.repeat(num, 1)
        if motion_t is None:
            return _summed(network(x, times, joint), factors[0])
        v, v_motion = network(
            x,
            times,
            joint,
            motion_t=motion_t.repeat(num, 1, 1),
            t_motion=torch.zeros_like(times) if known else None,
        )
        if x_t is None:
            scaled, free = (_summed(v_motion, of) for of in factors)
            return torch.where(SCALED.to(free.device), scaled, free)
        video = _summed(v, factors[0])
        return video if known else (video, _summed(v_motion, factors[1]))

    return velocity_fn


def _summed(v: Tensor, factors: list[float]) -> Tensor:
    """The sum of the passes' parts of ``v``, each times its factor, in fp32."""
    parts = v.float().chunk(len(factors))
    total = factors[0] * parts[0]
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = total + factor * part
    return total


def _with_habits(passes: tuple[Stream, ...], weight: float, has_audio: bool) -> tuple[Stream, ...]:
    """``passes`` and ``(weight - 1) (v(ref, txt, aud) - v(txt, aud))``, collected by pass."""
    factors = {stream.kind: stream.factor for stream in passes}
    for has_reference, factor in ((True, weight - 1), (False, 1 - weight)):
        kind = (has_reference, True, has_audio)
        factors[kind] = factors.get(kind, 0.0) + factor
    return tuple(Stream(*kind, factor=factor) for kind, factor in factors.items() if factor != 0)


def _joint_cond(
    cond: Cond, passes: tuple[Stream, ...], no_text: Tensor | None, *, has_reference: bool
) -> Cond:
    """The conditions of all passes, one after another along the batch axis."""
    num, batch = len(passes), cond.text.shape[0]
    joint = cond.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))
    texts = [cond.text if s.has_text or no_text is None else no_text for s in passes]
    joint = dataclasses.replace(joint, text=torch.cat(texts))
    if cond.audio is not None:
        keep = _kept([s.has_audio for s in passes], batch, joint.audio_keep, cond.text.device)
        joint = dataclasses.replace(joint, audio_keep=keep)
    if has_reference and not all(s.has_reference for s in passes):
        seen = [s.has_reference for s in passes]
        keep = _kept(seen, batch, joint.reference_keep, cond.text.device)
        joint = dataclasses.replace(joint, reference_keep=keep)
    return joint


def _kept(flags: list[bool], batch: int, old: Tensor | None, device: torch.device) -> Tensor:
    """A flag of each pass for each of its samples, and what was dropped before stays dropped."""
    keep = torch.tensor(flags, device=device).repeat_interleave(batch)
    return keep if old is None else keep & old


def _check_no_text(cond: Cond, no_text: Tensor | None, weight: float) -> None:
    if no_text is None:
        raise ValueError(f"text guidance {weight} needs the encoding of the empty text (no_text)")
    if no_text.shape != cond.text.shape:
        raise ValueError(
            f"no_text has shape {tuple(no_text.shape)}, expected that of the text, "
            f"{tuple(cond.text.shape)}"
        )
