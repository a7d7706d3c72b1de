"""How much of a person's habits the motion stream knows, without a pixel.

Weights that make motion before its video (Card.motion_first) need nothing drawn: ``python -m
avatar_v_eval.motion_stream --weights small`` lets TEST persons move to a sentence, told
the statistics of 16 s, 4 s, 1 s, one frame and nothing of another clip of theirs, and compares the
habits of that motion (style.py) with those that made the person. What arrives in the pixels is
personality.py's question. ``--baseline FOLDER`` puts other weights beside them, paired over
persons. Writes ``eval/results/motion_stream_NAME.json``.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from avatar_v.generate.chunks import OVERLAP, plan
from avatar_v.generate.generator import audio_tokens
from avatar_v.generate.guidance import guided
from avatar_v.generate.sampling import sample_motion
from avatar_v.loudness import normalise_loudness
from avatar_v.models.motion import pack_motion, unpack_motion
from avatar_v.types import Cond, Reference
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import Split
from avatar_v.world.style import sample_style
from avatar_v_eval import records
from avatar_v_eval.personality import (
    BASELINE,
    HABIT_WORDS,
    LENGTHS,
    WORDS,
    add_person_options,
    at_best,
    parsed,
)
from avatar_v_eval.records import (
    Number,
    as_command,
    bootstrap,
    bootstrap_mean,
    correlation,
    pearson,
)
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.shown import casts
from avatar_v_eval.style import HABITS, habits, neutral_opening
from avatar_v_eval.workers import mapped


@dataclass(frozen=True)
class Mover:
    """A person, what they say, how they moved to it and how they move elsewhere."""

    person_id: int
    prompt: str
    audio: Float[Tensor, " s"]
    motion: Float[Tensor, "f m"]
    neutral: Float[np.ndarray, " f"]  # its mouth opening if the person's amplitude were 1
    shown: Float[Tensor, "r m"]  # motion of another clip


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = _motion_first(options.weights, options)
    other = None if options.baseline is None else _motion_first(options.baseline, options)
    shown = max(options.conditions, key=lambda name: LENGTHS[name])
    movers = make_movers(
        options.split,
        options.persons,
        first=options.first,
        num_frames=options.frames,
        reference_frames=max(1, LENGTHS[shown]),
        num_workers=options.workers,
    )
    tracks = {"truth": [mover.motion.double().numpy() for mover in movers]}
    for name in options.conditions:
        tracks[name] = moved(rollout, movers, LENGTHS[name], WORDS[name], options.batch)
    weights, described = rollout.hashes(), rollout.described()
    if other is not None:
        words = options.baseline_words
        tracks[BASELINE] = moved(other, movers, LENGTHS[shown], words, options.batch)
        weights["baseline dit"] = other.hashes()["dit"]
        described += f"; {words}: {other.described()}"
    result = records.make_result(
        f"motion_stream_{options.name}",
        f"How much of a person the motion stream knows, {options.name}",
        numbers(movers, tracks, {**WORDS, BASELINE: options.baseline_words}, shown)
        | at_best(options.conditions, WORDS, options.frames, len(movers)),
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            f"{options.persons} {options.split.upper()} persons from number {options.first} on, "
            f"{options.frames} frames of speech each; the first frame's motion is given",
            described,
            "r: over persons, habit of the motion against the habit that made the person, Fisher's "
            "interval; other intervals bootstrapped over persons",
        ],
    )
    print(records.write_result(result, options.out))
    for number in result.numbers.values():
        print(f"{number.label:72s} {number.value:8.3f}  [{number.low}, {number.high}]")


def make_movers(
    split: Split,
    num_persons: int,
    *,
    first: int,
    num_frames: int,
    reference_frames: int,
    num_workers: int = 1,
) -> list[Mover]:
    """As `shown.make_shown_cases`, with nothing drawn."""
    cast = casts(split, num_persons, first)
    make_motion = partial(make_clip, size=64, render_video=False)

    def make(i: int) -> Mover:
        of = cast[i]
        clip = make_motion(of.person, of.here, of.said, num_frames=num_frames)
        shown = make_motion(of.person, of.there, of.other, num_frames=reference_frames)
        return Mover(
            of.person,
            clip.text,
            normalise_loudness(clip.audio),
            clip.motion,
            neutral_opening(of.person, of.said, num_frames),
            shown.motion,
        )

    return mapped(make, len(cast), "people", num_workers)


@torch.inference_mode()
def moved(
    rollout: Rollout, movers: list[Mover], num_shown: int, words: str, batch_size: int
) -> list[Float[np.ndarray, "f m"]]:
    """How the weights let each person move, told ``num_shown`` frames of another clip of theirs:
    the sampler's own passes, chunk by chunk, several persons at once."""
    parts = [movers[i : i + batch_size] for i in range(0, len(movers), batch_size)]
    tracks = []
    for part in track(parts, words, transient=True):
        tracks += list(_moved_at_once(rollout, part, num_shown).double().numpy())
    return tracks


def _moved_at_once(rollout: Rollout, movers: list[Mover], num_shown: int) -> Float[Tensor, "b f m"]:
    pipeline, settings = rollout.pipeline, rollout.pipeline.settings(rollout.request)
    conditioner = pipeline.conditioner
    num, num_frames = len(movers), len(movers[0].motion)
    text, no_text = conditioner.encode_text([m.prompt for m in movers] + [""] * num).split(num)
    chunks = plan(num_frames, chunk_latents=settings.chunk_latents)
    audio_of = [audio_tokens(conditioner, m.audio, chunks.num_latents) for m in movers]
    reference = None
    if num_shown:
        motion = pack_motion(torch.stack([m.shown[:num_shown] for m in movers]))
        seen = torch.ones(motion.shape[:2], dtype=torch.bool)
        # motion alone reads nothing of a reference but its motion
        nothing = torch.zeros(*motion.shape[:2], 1, 1, 1)
        reference = Reference(nothing, seen, torch.zeros_like(seen, dtype=torch.long), None, motion)
    prefix = pack_motion(torch.stack([m.motion[:1] for m in movers]))
    seeds = [rollout.request_for(m.person_id, m.prompt).seed for m in movers]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    latents = []
    for chunk in chunks.chunks:
        velocity = guided(
            pipeline.dit,
            Cond(text, torch.cat([of(chunk.latents) for of in audio_of]), reference=reference),
            text=settings.guidance_text,
            audio=settings.guidance_audio,
            reference=settings.guidance_reference,
            motion=settings.guidance_motion,
            no_text=no_text,
        )
        shape = (len(chunk.latents), prefix.shape[-1])
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators])
        made = sample_motion(velocity, noise, prefix, settings, generator=generators[0])
        prefix = made[:, -OVERLAP:]
        latents.append(made[:, -len(chunk.new_latents) :])
    return unpack_motion(torch.cat(latents, dim=1))[:, :num_frames]


def numbers(
    movers: list[Mover],
    tracks: dict[str, list[Float[np.ndarray, "f m"]]],
    words: dict[str, str],
    shown: str,
) -> dict[str, Number]:
    """Habits of the tracks against those of the persons, how far they are off, their means; those
    of ``shown``, the longest reference, against the baseline's."""
    words = {"truth": "the true motion", **words}
    styles = [sample_style(mover.person_id) for mover in movers]
    found = {}
    for habit in HABITS:
        true = np.array([getattr(style, habit) for style in styles])
        read = {
            name: np.array(
                [habits(one[1:], m.neutral[1:])[habit] for one, m in zip(rows, movers, strict=True)]
            )
            for name, rows in tracks.items()
        }
        for name, values in read.items():
            label = f"{HABIT_WORDS[habit]}, r over persons: {words[name]}"
            found[f"{habit}_{name}"] = correlation(values, true).described(label)
            off = bootstrap_mean(np.abs(values - read["truth"]))
            label = f"{HABIT_WORDS[habit]}, error against the true motion: {words[name]}"
            found[f"{habit}_{name}_error"] = off.described(label)
            label = f"{HABIT_WORDS[habit]}, mean over persons: {words[name]}"
            found[f"{habit}_{name}_mean"] = bootstrap_mean(values).described(label)
        if BASELINE in read:
            pairs = np.stack([read[shown], read[BASELINE], true], axis=1)
            gain = bootstrap(lambda index, p=pairs: _gain_in_r(p[index]), len(pairs), 0, 10_000)
            label = f"{HABIT_WORDS[habit]}, r over that of {words[BASELINE]}"
            found[f"{habit}_over_{BASELINE}"] = gain.described(label)
    return found


def _gain_in_r(pairs: Float[np.ndarray, "n 3"]) -> float:
    ours, theirs, true = pairs.T
    return pearson(ours, true) - pearson(theirs, true)


def _motion_first(weights: str, options: argparse.Namespace) -> Rollout:
    rollout = Rollout.load(weights, options)
    if not rollout.pipeline.card.motion_first:
        raise ValueError(f"{weights} do not make motion before its video: see personality.py")
    if options.habits is not None:
        request = dataclasses.replace(rollout.request, guidance_motion=options.habits)
        rollout = Rollout(rollout.pipeline, request)
    return rollout


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_person_options(parser, name="default", frames=401)
    parser.add_argument("--habits", type=float, help="guidance of habits, where not the card's")
    parser.add_argument("--batch", type=int, default=64, help="persons at once")
    return parsed(parser, arguments)


if __name__ == "__main__":
    as_command(main)
