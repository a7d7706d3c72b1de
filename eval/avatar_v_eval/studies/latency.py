"""How late a live voice is answered, and its lips: blocks of causal weights x look-ahead of motion.

Persons speak after a clip of theirs from another scene, from the same first frame and noise.
The latency of a sample is how long its picture waits for later sound (resolve.live_delay) and the
time that this machine takes for a chunk, behind which a steady stream shows it. A way that takes
longer for a chunk than the chunk plays falls behind here, whatever its latency. Lips are read by
critics that no stage could name.

Weights are sampled in each of ``--blocks``, also those that they were not trained for: such a row
says what other weights have to beat, not what blocks of that length can do. They see as many
latents of the past as in their own blocks. The motion network was trained on whole windows, so
that it knows every look-ahead; the look-ahead of sound is that of the weights.
"""

import argparse
import copy
import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn

from avatar_v.base import checks
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.models.config import CAUSAL_FIRST
from avatar_v.request.resolve import live_delay
from avatar_v.sampling.chunks import plan
from avatar_v.types import FRAME_RATE_HZ, TEMPORAL_FACTOR
from avatar_v_eval.cases import Case, add_case_options, asked_cases, cases_note, check_persons
from avatar_v_eval.generated import GeneratedClip, build_inputs, generate, through_vae
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Condition, Findings, gains, means, read_cases, resumable
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.study_metrics import MEASURES, StudyMetrics

CEILING, REFERENCE_FRAMES = "true", 201
READ = {name: f"{MEASURES[name]}, held-out critic" for name in ("mouth", "sync", "identity")}
PARTS = {"motion": "the motion network", "video": "the video network", "other": "all else"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=16, frames=93)
    add_sampling_options(parser)
    parser.set_defaults(weights="small_causal", split="validation")  # a default is chosen by it
    add = parser.add_argument
    add("--blocks", type=int, nargs="+", default=[3, 1], help="latents of a block")
    add("--look-aheads", type=int, nargs="+", default=[0, 1, 2], help="latents of motion's sound")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    for block, ahead in ((b, a) for b in options.blocks for a in options.look_aheads):
        checks.count("--blocks", block, most=64)
        checks.count("--look-aheads", ahead, least=0, most=16)
    rollout = Rollout.load(options.weights, options)
    own = rollout.pipeline.card.can.causal_block
    if own is None:
        raise ValueError(f"--weights {options.weights}: expected causal weights (recipes/4d, 4e)")
    blocks = {block: of_block(rollout, block) for block in options.blocks}
    ways = {
        f"b{block}_a{ahead}": dataclasses.replace(r, request=r.request.changed(look_ahead=ahead))
        for block, r in blocks.items()
        for ahead in options.look_aheads
    }
    words = {key: _words(key, way, own) for key, way in ways.items()}
    critics = StudyMetrics.held_out()
    weights = {**critics.hashes(), **rollout.hashes()}
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES, size=rollout.size)
    conditions: dict[str, Condition] = {
        CEILING: lambda case: GeneratedClip(through_vae(rollout.vae, case.video))
    }
    conditions |= {
        key: lambda case, way=way: generate(way, case, REFERENCE_FRAMES, "meter")
        for key, way in ways.items()
    }
    readings = read_cases(
        cases,
        conditions,
        lambda case, clip: critics.read(case.shortened(len(clip.video)), clip.video),
        num_workers=options.workers,
        kept=resumable(options, weights, rollout.sampling()),
    )
    first, *others = ways
    numbers = means(readings, READ, {**words, CEILING: "the true video through the VAE"})
    numbers |= gains(readings, READ, words, [(other, first) for other in others])
    for key, way in ways.items():
        numbers |= latency_numbers(key, words[key], way, cases[0])
    return Findings(
        "Latency against lips",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, f" at {rollout.size} px; the reference shows another scene"),
            rollout.described(),
            f"trained in blocks of {own} alone; times: median of the chunks of one video, lowest "
            "and highest, nothing else running in the process",
        ],
    )


def of_block(rollout: Rollout, block: int) -> Rollout:
    """The same weights in blocks of so many latents, of which they see as much as before."""
    pipeline = rollout.pipeline
    config, can, dit = pipeline.dit.config, pipeline.card.can, pipeline.dit
    if block != config.causal_block:
        assert config.causal_block is not None
        seen = config.causal_window and config.causal_window * config.causal_block
        dit = copy.copy(dit)  # the parameters are the same
        window = seen and max(round(seen / block), 1)
        dit.config = dataclasses.replace(config, causal_block=block, causal_window=window)
        can = dataclasses.replace(can, causal_block=block)
        pipeline = AvatarPipeline(
            dit,
            pipeline.conditioner,
            dataclasses.replace(pipeline.card, can=can),
            device=str(pipeline.device),
            precision="bf16" if pipeline.bf16 else "fp32",
        )
    request = rollout.request.changed(chunk_latents=CAUSAL_FIRST + block)
    return Rollout(pipeline, request)


def latency_numbers(key: str, words: str, way: Rollout, case: Case) -> dict[str, Number]:
    """Of one video: the time of a chunk and its parts, and the latency that follows."""
    delay = live_delay(way.request, way.pipeline.card)
    made, parts = chunk_seconds(way, case)
    taken, wait = median_of_repeats(made), delay.later_s
    latency = Number(taken.value + wait, taken.n, min(made) + wait, max(made) + wait)
    assert way.pipeline.card.can.causal_block is not None
    plays = TEMPORAL_FACTOR * way.pipeline.card.can.causal_block / FRAME_RATE_HZ
    numbers = {
        f"latency_{key}": latency.described(f"from a sample to its picture: {words}", unit="s"),
        f"wait_{key}": Number(wait, 1).described(f"of it for sound: {words}", unit="s"),
        f"made_{key}": taken.described(f"of it making a chunk: {words}", unit="s"),
        f"busy_{key}": Number(taken.value / plays, taken.n).described(
            f"time of a chunk over the time it plays; above 1 it falls behind: {words}"
        ),
    }
    return numbers | {
        f"made_{part}_{key}": Number(parts[part], taken.n).described(
            f"of a chunk, mean, {PARTS[part]}: {words}", unit="s"
        )
        for part in PARTS
    }


def chunk_seconds(way: Rollout, case: Case) -> tuple[list[float], dict[str, float]]:
    """Seconds of each whole chunk of a video but the first two, and of their parts in the mean."""
    pipeline, request = way.pipeline, way.request_for(case.person_id, case.prompt)
    inputs = build_inputs(way, case, REFERENCE_FRAMES, "meter")
    length = request.sampling.chunk_latents
    assert length is not None
    chunks = plan(case.num_frames, chunk_latents=length).chunks[:-1]
    ends = [chunk.frames.stop for chunk in chunks]
    net, times, shown = pipeline.conditioner.motion_net, list[float](), 0
    parts = {"motion": net, "video": pipeline.dit}
    with timed({name: part for name, part in parts.items() if part is not None}) as spent:
        marks = []
        for clip in pipeline.clips(inputs, request):
            shown += len(clip.frames)
            if shown in ends:
                times.append(time.perf_counter())
                marks.append({**spent})
    made = np.diff(times)[1:].tolist()
    if not made:
        raise ValueError("times need a video of at least 4 chunks; give --frames more")
    each = {n: (marks[-1].get(n, 0.0) - marks[1].get(n, 0.0)) / len(made) for n in parts}
    return made, {**each, "other": float(np.mean(made)) - sum(each.values())}


@contextmanager
def timed(modules: dict[str, nn.Module]) -> Iterator[dict[str, float]]:
    """Seconds spent so far in the calls of each module."""
    spent, begun, handles = dict.fromkeys(modules, 0.0), dict[str, float](), []
    for name, module in modules.items():

        def before(*_: object, name: str = name) -> None:
            begun[name] = time.perf_counter()

        def after(*_: object, name: str = name) -> None:
            spent[name] += time.perf_counter() - begun[name]

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def _words(key: str, way: Rollout, trained: int) -> str:
    block, ahead = way.pipeline.card.can.causal_block, way.request.sampling.look_ahead
    untrained = "" if block == trained else ", untrained"
    return f"block {block}{untrained}, look-ahead {ahead}"
