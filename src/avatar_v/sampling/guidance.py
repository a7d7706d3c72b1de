"""Classifier-free guidance over reference, text and audio, nested, in one batched forward.

``v = v(∅) + w_ref [v(ref) - v(∅)] + w_txt [v(ref, txt) - v(ref)] + w_aud [v(ref, txt, aud) - v(ref,
txt)]``; without a reference the second term is left out.

The convention is ``uncond + w (cond - uncond)``: w = 1 is no guidance, w = 0 drops the condition.
Public code often means ``cond + w (cond - uncond)``; subtract 1 before comparing numbers.

Weights with guidance inside (objectives/distill_cfg.py) read w beside their conditions: one pass
gives the guided velocity, whatever w is.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.flow import Latents
from avatar_v.models.blocks import ContextKeys
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import Corruption
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.solver import VelocityFn
from avatar_v.types import Cond

NAMES = ("text", "audio", "reference")
"""The guided conditions, in the order of Cond.guidance."""


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


@dataclass
class Kept:
    """Keys and values of text, and of the sound of a run of frames (None: all), for all steps of
    generation. Training, whose weights change and whose shards travel, computes them in each."""

    run: slice | None = None
    layers: list[ContextKeys] = field(default_factory=list)

    def of(self, run: slice | None) -> list[ContextKeys]:
        """Those of ``run``, which the first step fills; others are forgotten."""
        if run != self.run:
            self.run, self.layers = run, []
        return self.layers


@dataclass(frozen=True)
class Passes:
    """The passes of a request as one batch."""

    dit: nn.Module
    joint: Cond  # of all passes, one after another along the batch axis
    factors: tuple[float, ...]
    keys: Callable[[], KeyValueCache | None]  # of the reference, for all passes
    corruption: Corruption | None = None  # of the history of a causal network
    kept: Kept = field(default_factory=Kept)

    @property
    def num(self) -> int:
        return len(self.factors)

    def velocity(self, x_t: Tensor, t: Tensor, start: int = 0) -> Tensor:
        """The guided velocity of all frames; of a causal network these are a video from its
        beginning, whose first has the position ``start``."""
        more = self._seen(0, x_t.shape[1], None) | ({"start": start} if start else {})
        v = self.dit(*self._repeated(x_t, t), self.joint, past=self.keys(), **more)
        return _summed(v, self.factors)

    def behind(self, past: KeyValueCache | None, moments: Tensor | None) -> "Passes":
        """The same passes with another reference."""
        keys = None if past is None else past.repeat(self.num)
        joint = self.joint
        if moments is not None:
            joint = dataclasses.replace(joint, moments=moments.repeat(self.num, 1))
        return dataclasses.replace(self, joint=joint, keys=lambda: keys)

    def of_block(
        self,
        x_t: Tensor,
        t: Tensor,
        run: slice,
        history: KeyValueCache | None,
        start: int,
        number: int,
    ) -> tuple[Tensor, KeyValueCache]:
        """The guided velocity of a block of a causal network, whose conditions are those of the
        frames ``run``, behind a ``history`` of all passes; and the block's own keys and values, as
        later blocks see them. ``number`` is that of its first frame in the video."""
        past = self.keys()
        if history is not None:
            context = None if past is None else past.expand(history.num_samples)
            past = history if context is None else context.append(history)
        cond = self.joint.frames(run)
        x, times = self._repeated(x_t, t)
        more = self._seen(number, x_t.shape[1], run)
        v, keys = self.dit(x, times, cond, past=past, start=start, return_keys=True, **more)
        return _summed(v, self.factors), keys

    def _seen(self, number: int, num_frames: int, run: slice | None) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        if isinstance(self.dit, AvatarDiT) and torch.is_inference_mode_enabled():
            seen["contexts"] = self.kept.of(run)
        if self.corruption is not None:
            seen["as_seen"] = self.corruption.over(number, num_frames)
        return seen

    def _repeated(self, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x_t.repeat(self.num, 1, 1, 1, 1), t.repeat(self.num, 1)


def guided(
    dit: nn.Module,
    cond: Cond,
    *,
    text: float,
    audio: float,
    reference: float = 1.0,
    no_text: Float[Tensor, "b n d"] | None = None,
    past: KeyValueCache | None = None,
) -> VelocityFn:
    """The guided velocity ``v = fn(x_t, t)`` of ``dit`` under ``cond``; see `guided_passes`."""
    return guided_passes(
        dit, cond, text=text, audio=audio, reference=reference, no_text=no_text, past=past
    ).velocity


def guided_passes(
    dit: nn.Module,
    cond: Cond,
    *,
    text: float,
    audio: float,
    reference: float = 1.0,
    no_text: Float[Tensor, "b n d"] | None = None,
    past: KeyValueCache | None = None,
) -> Passes:
    """The passes of ``dit`` under ``cond`` that these weights of guidance need.

    ``no_text`` is the encoding of "" with the shape of ``cond.text``; ValueError where a weight
    asks for the pass without text and it is missing or of another shape. ``past`` is the encoded
    reference of the request; without it that of ``cond`` is encoded before the first pass. Weights
    with guidance inside take the weights, or those of ``cond.guidance``, which may differ
    between samples, and make one pass; a warning says where a weight lies outside the range that
    they were trained with.
    """
    if cond.moments is None and cond.reference is not None:
        moments = cast(AvatarDiT, dit).reference_moments(cond.reference)
        cond = dataclasses.replace(cond, moments=moments)
    has_reference = past is not None or cond.reference is not None or cond.moments is not None
    ranges = dit.config.guidance_ranges if isinstance(dit, AvatarDiT) else None
    if ranges is not None:
        if cond.guidance is None:
            cond = told(cond, (text, audio, reference), ranges)
        text = audio = reference = 1.0
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

    @functools.cache
    def keys() -> KeyValueCache | None:
        encoded = past
        if past is None and cond.reference is not None:
            encoded = cast(AvatarDiT, dit).encode_reference(cond.reference)
        return None if encoded is None else encoded.repeat(len(passes))

    return Passes(dit, joint, tuple(stream.factor for stream in passes), keys)


def told(
    cond: Cond, weights: tuple[float, float, float], ranges: Sequence[Sequence[float]]
) -> Cond:
    """``cond`` with the guidance weights of text, audio and reference. Warns of a weight outside
    its range of ``ranges``."""
    for name, weight, (low, high) in zip(NAMES, weights, ranges, strict=True):
        if not low <= weight <= high:
            warnings.warn(
                f"{name} guidance {weight} is outside {low} to {high}, the range that these "
                "weights were trained with",
                stacklevel=3,
            )
    given = torch.tensor(weights, device=cond.text.device)
    return dataclasses.replace(cond, guidance=given.expand(cond.text.shape[0], -1))


def guided_by_sample(
    dit: AvatarDiT,
    x_t: Latents,
    t: Float[Tensor, "b l"],
    cond: Cond,
    weights: Float[Tensor, "b 3"],
    *,
    no_text: Float[Tensor, "b n d"],
    past: KeyValueCache | None,
) -> Latents:
    """The guided velocity where every sample has its own ``weights`` of text, audio and reference,
    from all four passes: the target of guidance distillation."""
    kinds = [(True, True, True), (True, True, False), (True, False, False), (False, False, False)]
    passes = tuple(Stream(*kind, factor=1.0) for kind in kinds)
    if cond.moments is None:
        cond = dataclasses.replace(cond, moments=dit.reference_moments(cond.reference))
    joint = _joint_cond(cond, passes, no_text, has_reference=past is not None)
    keys = None if past is None else past.repeat(len(passes))
    v = dit(x_t.repeat(len(passes), 1, 1, 1, 1), t.repeat(len(passes), 1), joint, past=keys)
    text, audio, reference = weights.to(v.device).T
    factors = torch.stack([audio, text - audio, reference - text, 1 - reference])
    parts = v.float().unflatten(0, (len(passes), -1))
    return (factors[..., None, None, None, None] * parts).sum(0)


def _summed(v: Tensor, factors: Sequence[float]) -> Tensor:
    """The sum of the passes' parts of ``v``, each times its factor, in fp32."""
    parts = v.float().chunk(len(factors))
    total = factors[0] * parts[0]
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = total + factor * part
    return total


def _joint_cond(
    cond: Cond, passes: tuple[Stream, ...], no_text: Tensor | None, *, has_reference: bool
) -> Cond:
    """The conditions of all passes, one after another along the batch axis. The reference itself
    is left out: its keys are given beside them."""
    num, batch = len(passes), cond.text.shape[0]
    cond = dataclasses.replace(cond, reference=None)
    joint = cond.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))
    texts = [cond.text if s.has_text or no_text is None else no_text for s in passes]
    joint = dataclasses.replace(joint, text=torch.cat(texts))
    if cond.audio is not None:
        keep = _kept([s.has_audio for s in passes], batch, joint.audio_keep, cond.text.device)
        joint = dataclasses.replace(joint, audio_keep=keep)
    if has_reference and not all(s.has_reference for s in passes):
        seen = [s.has_reference for s in passes]
        keep = _kept(seen, batch, joint.reference_keep, torch.device("cpu"))
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
