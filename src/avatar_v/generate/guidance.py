"""Classifier-free guidance over text and audio, nested, in one batched forward.

``v = v(∅) + w_txt [v(txt) - v(∅)] + w_aud [v(txt, aud) - v(txt)]``

The convention is ``uncond + w (cond - uncond)``: w = 1 is no guidance, w = 0 drops the condition.
Public code often means ``cond + w (cond - uncond)``; subtract 1 before comparing numbers.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.generate.sampler import VelocityFn
from avatar_v.types import Cond


@dataclass(frozen=True)
class Stream:
    """One pass of the network and the factor of its velocity in the guided sum."""

    has_text: bool
    has_audio: bool
    factor: float


def streams(*, text: float, audio: float, has_audio: bool = True) -> tuple[Stream, ...]:
    """The passes that matter: the nested sum, collected by pass, without the zero factors.

    ``(1 - w_txt) v(∅) + (w_txt - w_aud) v(txt) + w_aud v(txt, aud)``: no guidance (both weights 1)
    is one pass, one of the two guided is two, and so are equal weights, where v(txt) cancels.
    Without audio in the request the last two terms are ``w_txt v(txt)``.
    """
    factors = [(True, True, audio), (True, False, text - audio), (False, False, 1 - text)]
    if not has_audio:
        factors = [(True, False, text), (False, False, 1 - text)]
    return tuple(Stream(*stream) for stream in factors if stream[2] != 0)


def guided(
    dit: nn.Module,
    cond: Cond,
    *,
    text: float,
    audio: float,
    no_text: Float[Tensor, "b n d"] | None = None,
) -> VelocityFn:
    """The guided velocity of ``dit`` under ``cond`` as a function of (x_t, t).

    ``no_text`` is the encoding of "" with the shape of ``cond.text``; ValueError where a weight
    asks for the pass without text and it is missing or of another shape.
    """
    passes = streams(text=text, audio=audio, has_audio=cond.audio is not None)
    if any(not stream.has_text for stream in passes):
        _check_no_text(cond, no_text, text)
    joint = _joint_cond(cond, passes, no_text)
    num = len(passes)

    def velocity_fn(x_t: Tensor, t: Tensor) -> Tensor:
        v = dit(x_t.repeat(num, 1, 1, 1, 1), t.repeat(num, 1), joint).float()
        parts = v.chunk(num)
        total = passes[0].factor * parts[0]
        for stream, part in zip(passes[1:], parts[1:], strict=True):
            total = total + stream.factor * part
        return total

    return velocity_fn


def _joint_cond(cond: Cond, passes: tuple[Stream, ...], no_text: Tensor | None) -> Cond:
    """The conditions of all passes, one after another along the batch axis."""
    num, batch = len(passes), cond.text.shape[0]
    joint = cond.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))
    texts = [cond.text if s.has_text or no_text is None else no_text for s in passes]
    joint = dataclasses.replace(joint, text=torch.cat(texts))
    if cond.audio is None:
        return joint
    heard = torch.tensor([s.has_audio for s in passes], device=cond.text.device)
    keep = heard.repeat_interleave(batch)
    if joint.audio_keep is not None:
        keep = keep & joint.audio_keep
    return dataclasses.replace(joint, audio_keep=keep)


def _check_no_text(cond: Cond, no_text: Tensor | None, weight: float) -> None:
    if no_text is None:
        raise ValueError(f"text guidance {weight} needs the encoding of the empty text (no_text)")
    if no_text.shape != cond.text.shape:
        raise ValueError(
            f"no_text has shape {tuple(no_text.shape)}, expected that of the text, "
            f"{tuple(cond.text.shape)}"
        )
