"""Guidance in one pass against guidance in several: the error of the velocity over a grid.

TEST persons speak after a clip of theirs from another scene. True latents of a first chunk are
noised at three times. The teacher's guided passes and the student's one pass give a velocity; the
error is the root mean square of their difference as a share of that of the teacher's velocity. The
rows of no guidance inside are the teacher's own velocity at weights of 1.
"""

import argparse
import dataclasses
import itertools
from functools import partial

import torch
from torch import Tensor

from avatar_v import flow
from avatar_v.generate.generator import audio_tokens, inference
from avatar_v.inputs.person import Person
from avatar_v.sampling.chunks import Chunk, Span
from avatar_v.sampling.rollout import Words, begin, chunk_velocity
from avatar_v.sampling.settings import Settings
from avatar_v.types import num_latents
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    signed,
)
from avatar_v_eval.generated import inputs_of
from avatar_v_eval.protocol import Findings, Reading, means, read_cases
from avatar_v_eval.rollout import Rollout, add_sampling_options

REFERENCE_FRAMES = 201
TIMES = (0.9, 0.6, 0.3)
CONDITIONS = ("text", "audio", "reference")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=49)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--student", required=True, help="folder of weights with guidance inside")
    add("--grid", type=float, nargs="+", default=[1.0, 2.0, 3.0], help="weights of a condition")


def measure(options: argparse.Namespace) -> Findings:
    """ValueError for a student without guidance inside."""
    check_persons(options, 4)
    teacher = Rollout.load(options.weights, options)
    student = Rollout.load(options.student, options)
    if not student.pipeline.dit.config.has_guidance_inside:
        raise ValueError(
            f"{options.student} has no guidance inside: see recipes/4a_distill_cfg.yaml"
        )
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES)
    grid = list(itertools.product(options.grid, repeat=len(CONDITIONS)))
    names = {name_of(weights): weights for weights in grid}
    readings = read_cases(
        cases,
        {"all": partial(read, teacher, student, names)},
        lambda case, reading: reading,
        num_workers=options.workers,
    )
    words = {name: f"relative error at {described(weights)}" for name, weights in names.items()}
    words |= {f"{name}_plain": f"{word}, no guidance inside" for name, word in words.items()}
    return Findings(
        "Guidance in one pass",
        means(readings, words, {"all": "student against teacher"}),
        recipe=student.recipe,
        weights={"teacher": teacher.hashes()["dit"], "student": student.hashes()["dit"]},
        notes=[
            cases_note(options, f"; times {TIMES}; intervals over persons"),
        ],
    )


def name_of(weights: tuple[float, ...]) -> str:
    return "_".join(
        f"{name[0]}{weight:g}" for name, weight in zip(CONDITIONS, weights, strict=True)
    )


def described(weights: tuple[float, ...]) -> str:
    parts = zip(CONDITIONS, weights, strict=True)
    return " ".join(f"{name} {weight:g}" for name, weight in parts)


def read(
    teacher: Rollout, student: Rollout, names: dict[str, tuple[float, ...]], case: Case
) -> Reading:
    """The errors of one person, by weights."""
    found = {}
    given = [state_of(rollout, case) for rollout in (teacher, student)]
    plain = velocities(teacher, given[0], (1.0, 1.0, 1.0))
    for name, weights in names.items():
        expected = velocities(teacher, given[0], weights)
        found[name] = relative(velocities(student, given[1], weights), expected)
        found[f"{name}_plain"] = relative(plain, expected)
    return found


@dataclasses.dataclass(frozen=True)
class State:
    """A chunk of a case, as both networks meet it."""

    person: Person
    words: Words
    audio: Tensor
    motion: Tensor
    clean: Tensor
    noise: Tensor
    chunk: Chunk


def state_of(rollout: Rollout, case: Case) -> State:
    """The true latents of a case with all conditions."""
    pipeline, conditioner = rollout.pipeline, rollout.pipeline.conditioner
    num = num_latents(case.num_frames)
    with inference(pipeline.device, bf16=False):
        clean = conditioner.vae.encode(signed(case.video)[None])
        text = conditioner.encode_text([case.prompt, ""]).float().split(1)
        audio = audio_tokens(conditioner, case.audio, num)(Span(0, num))
        motion = conditioner.pack_motion(case.motion[None])
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(case.person_id))
    person = pipeline.person(inputs_of(rollout, case, REFERENCE_FRAMES, "truth"))
    whole = Span(0, num)
    chunk = Chunk(0, "ref2v", whole, 1, whole, Span(0, case.num_frames))
    return State(person, Words(*text), audio, motion, clean, noise, chunk)


def velocities(rollout: Rollout, state: State, weights: tuple[float, ...]) -> Tensor:
    """The guided velocity at all times, of the latents behind the first frame."""
    dit, (text, audio, reference) = rollout.pipeline.dit, weights
    settings = Settings(
        len(state.chunk.latents),
        guidance_text=text,
        guidance_audio=audio,
        guidance_reference=reference,
    )
    found = []
    with inference(rollout.pipeline.device, bf16=False):
        carry = begin(dit, (state.clean[:, :1],), state.person.reference, settings)
        given = chunk_velocity(dit, state.words, state.audio, carry, settings)
        fn = given.video(len(state.chunk.latents), state.motion)
        for time in TIMES:
            t = torch.full(state.clean.shape[:2], time)
            t[:, 0] = 0
            found.append(fn(flow.interpolate(state.clean, state.noise, t), t)[:, 1:])
    return torch.cat(found)


def relative(v: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of ``expected``."""
    return float((v - expected).square().mean().sqrt() / expected.square().mean().sqrt())
