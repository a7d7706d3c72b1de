"""Classifier-free guidance over reference, text and audio, nested, in one batched forward.

``v = v(∅) + w_ref [v(ref) - v(∅)] + w_txt [v(ref, txt) - v(ref)] + w_aud [v(ref, txt, aud) - v(ref,
txt)]`` (ALGORITHMS §4.1); without a reference the second term is left out.

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

from avatar_v.models.reference import ReferenceCache
from avatar_v.types import Cond

GuidedFn = Callable[..., Any]
"""``v = fn(x_t, t)``, or ``v, v_motion = fn(x_t, t, motion_t, t_motion)`` with the motion stream;
``t_motion`` None are the times of the video."""


@dataclass(frozen=True)
class Stream:
    """One pass of the network and the factor of its velocity in the guided sum."""

    has_reference: bool
    has_text: bool
    has_audio: bool
    factor: float


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
    no_text: Float[Tensor, "b n d"] | None = None,
    cache: ReferenceCache | None = None,
) -> GuidedFn:
    """The guided velocity of ``dit`` under ``cond`` as a function of (x_t, t) or, with the motion
    stream, of (x_t, t, motion_t, t_motion).

    ``no_text`` is the encoding of "" with the shape of ``cond.text``; ValueError where a weight
    asks for the pass without text and it is missing or of another shape. ``cache`` is the encoded
    reference of the request, in the place of ``cond.reference``.
    """
    has_reference = cache is not None or cond.reference is not None
    passes = streams(
        text=text,
        audio=audio,
        reference=reference,
        has_audio=cond.audio is not None,
        has_reference=has_reference,
    )
    if any(not stream.has_text for stream in passes):
        _check_no_text(cond, no_text, text)
    joint = _joint_cond(cond, passes, no_text, has_reference=has_reference)
    num = len(passes)
    network = dit if cache is None else functools.partial(dit, reference_cache=cache)

    def summed(v: Tensor) -> Tensor:
        parts = v.float().chunk(num)
        total = passes[0].factor * parts[0]
        for stream, part in zip(passes[1:], parts[1:], strict=True):
            total = total + stream.factor * part
        return total

    def velocity_fn(
        x_t: Tensor, t: Tensor, motion_t: Tensor | None = None, t_motion: Tensor | None = None
    ):
        x_t, t = x_t.repeat(num, 1, 1, 1, 1), t.repeat(num, 1)
        if motion_t is None:
            return summed(network(x_t, t, joint))
        motion_t = motion_t.repeat(num, 1, 1)
        t_motion = None if t_motion is None else t_motion.repeat(num, 1)
        v, v_motion = network(x_t, t, joint, motion_t=motion_t, t_motion=t_motion)
        return summed(v), summed(v_motion)

    return velocity_fn


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
