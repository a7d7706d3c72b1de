"""Scored: a reward, or a metric that watches, of any scorer (avatar_v.scoring).

A recipe names it as ``{path: avatar_v.rewards.scored.Scored, options: {scorer: sharpness}}``. A
scorer judges one clip after the other; what must see a whole batch is in shipped.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from avatar_v.rewards.shipped import Motion, Pictures, Video, as_stored, by_latent
from avatar_v.rewards.terms import RewardValues
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.pictures import FramesInMemory
from avatar_v.scoring.readings import STYLE
from avatar_v.scoring.registry import make_scorer
from avatar_v.scoring.scorer import Scorer, failure
from avatar_v.scoring.values import Values
from avatar_v.types import SAMPLES_PER_FRAME, Batch, num_frames, num_latents

STILL_FRAMES = 12
"""How long a portrait is shown: `sampling.sampled` takes each once."""


class Scored:
    """One output of a scorer for each sample, more is better: as it is where higher is better,
    minus it where lower is, minus its absolute value where zero is. Frames that no sample made are
    not judged. What the scorer cannot say of a sample is missing, with its reason. None where
    motion alone is made.

    Args:
        scorer: Its name, or a dotted module with SCORERS, as ``--metrics`` takes it.
        output: One of its outputs; "" is the first.
        relative: To the true pictures' score: the share of what is good in them, at most 1. An
            output of which neither more nor less is better is always taken so.
        per_latent: From the values per frame, between which it is interpolated.
        options: Of the scorer: ``critic``, a shipped critic's name or a folder, or ``weights``.

    ValueError as `registry.make_scorer`, and for ``relative`` where zero is better.
    """

    def __init__(
        self,
        scorer: str,
        output: str = "",
        relative: bool = False,
        per_latent: bool = False,
        **options: Any,
    ) -> None:
        self.scorer = make_scorer(scorer, output, **options)
        outputs = {one.key: one for one in self.scorer.outputs}
        self.output = outputs[output] if output else self.scorer.outputs[0]
        if relative and self.output.better == "zero":
            raise ValueError(f"{self.output.key} is best at zero: no share of the truth's is taken")
        self.relative, self.per_latent = relative or not self.output.better, per_latent

    def __call__(
        self, frames: Video | None, audio: Tensor, reference: Batch | None, motion: Motion, *,
        condition: Int[Tensor, " b"], num_given: int = 0, portrait: Pictures | None = None,
        truth: Float[Tensor, "c f 3 _h _w"] | None = None,
        true_motion: Float[Tensor, "c f m"] | None = None, **columns: Any,
    ) -> RewardValues | None:  # fmt: skip
        if frames is None:
            return None
        own = None if reference is None else known_motion(reference)
        first = num_frames(num_given) if num_given else 0
        clips = scored_clips(frames, audio, condition, portrait, own, truth, true_motion, first)
        nothing = torch.full((num_latents(frames.shape[1]) if self.per_latent else 1,), torch.nan)
        true: dict[int, Tensor] = {}  # of each condition once
        rows, why = [], ""
        for clip, number in zip(clips, condition.tolist(), strict=True):
            try:
                row = self._read(clip, first)
                if self.relative:
                    if number not in true:
                        true[number] = self._read(replace(clip, video=clip.true), first)
                    row = self._share(row, true[number])
                rows.append(row)
            except Exception as error:  # a judge that fails must not end a training
                reasoned = isinstance(error, ValueError)
                why = why or (str(error) if reasoned else failure(self.scorer, error))
                rows.append(nothing)
        values = torch.stack(rows)
        return RewardValues(values if self.per_latent else values[:, 0], why)

    def _read(self, clip: ScoredClip, first: int) -> Float[Tensor, " n"]:
        """A number for each latent frame, or one, of a clip that begins at the ``first`` frame."""
        values, key, better = judged(self.scorer, clip), self.output.key, self.output.better
        row = torch.tensor([float(values.values[key])])
        if self.per_latent:
            row = _by_latent(values, key, first, clip.video.num_frames)
        return -row.abs() if better == "zero" else -row if better == "lower" else row

    def _share(self, made: Float[Tensor, " n"], true: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """At most 1; of what lower is better the inverse share. NaN where nothing is good in the
        truth."""
        less, more = (-true, -made) if self.output.better == "lower" else (made, true)
        share = torch.where(more > 0, less / more, torch.nan)
        return torch.where(made >= true, 1.0, share)


def _by_latent(values: Values, key: str, first: int, num: int) -> Float[Tensor, " l"]:
    """The mean of each latent frame. Those before the ``first`` have no values: its own."""
    rows = values.frames.get(key)
    if not rows:
        raise ValueError(f"there are no values per frame of {key}")
    numbers, found = zip(*rows, strict=True)
    each = torch.from_numpy(np.interp(np.arange(-first, num), numbers, found)).float()
    return by_latent(each[None], "mean")[0]


def judged(scorer: Scorer, clip: ScoredClip) -> Values:
    """What a scorer says, on the device of the frames, in the precision of its own."""
    device = clip.image.device
    for part in vars(scorer).values():
        if isinstance(part, nn.Module):
            part.to(device)
    with torch.autocast(device.type, enabled=False):
        return scorer.score(clip)


def known_motion(reference: Batch) -> list[Float[Tensor, "_r m"]]:
    """Of each person what is visible; nothing of one whose habits are not known."""
    shown = reference.valid
    if reference.habits_known is not None:
        shown = shown & reference.habits_known[:, STYLE].all(1, keepdim=True).to(shown)
    return [rows[seen] for rows, seen in zip(reference.motion, shown, strict=True)]


def scored_clips(
    frames: Video,
    audio: Float[Tensor, "b s"],
    condition: Int[Tensor, " b"],
    portrait: Pictures | None = None,
    own: list[Float[Tensor, "_r m"]] | None = None,
    truth: Float[Tensor, "c f 3 _h _w"] | None = None,
    true_motion: Float[Tensor, "c f m"] | None = None,
    first: int = 0,
) -> Iterator[ScoredClip]:
    """What scorers see of each sample from the ``first`` frame on, as files would hold it, on the
    device of the frames.

    The reference are the portraits of the person, with what is known of how they move elsewhere;
    none without portraits. The scene image is the frame with which the sample begins: the image
    that was given, if there was one.
    """
    rest = slice(first, None)
    for video, sound, number in zip(frames, audio, condition.tolist(), strict=True):
        stored, heard = as_stored(video), sound[first * SAMPLES_PER_FRAME :]
        shown = stored[:0] if portrait is None else as_stored(portrait[number])
        shown = FramesInMemory(shown.repeat_interleave(STILL_FRAMES, 0))
        silence = sound.new_zeros(SAMPLES_PER_FRAME * shown.num_frames)
        true = None
        if truth is not None:
            moves = None if true_motion is None else true_motion[number, rest]
            true = Footage.of(as_stored(truth[number, rest]), heard, "the truth", moves)
        yield ScoredClip(
            Footage.of(stored[rest], heard),
            Footage(shown, silence, "the reference", None if own is None else own[number]),
            stored[0],
            true,
        )
