"""A line of ranks with steps of their own: how near it comes to its slowest rank.

The ideal of a line is the rate of its slowest rank if that one never waited. With networks: two
processes of one thread, each on a core of its own, make a video; the ideal is by the processor's
time of the busier one. Beside it one such process. With more ranks than this machine has cores,
ranks sleep for as long as a step or a block's pictures would take, more or less by ``--jitter``,
and hand on tensors as large as those of a block; what is measured then is the line alone: messages,
order and waiting. Blocking sends, which wait until the next rank has taken a block, stand beside
it (Live Avatar table 3: 4 steps, a rank for each, and one that decodes).
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from avatar_v.base import checks
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.pipelining import chained, pipelined
from avatar_v.parallel.timestep import PipelineGroup, Stopped, steps_of_ranks
from avatar_v.request.request import Request
from avatar_v.request.resolve import num_steps_of, resolve_chunk_latents
from avatar_v.sampling.blocks import split_blocks
from avatar_v.sampling.chunks import plan
from avatar_v.weights.card import read_card, weights_folder
from avatar_v_eval.cases import first_case
from avatar_v_eval.generated import build_inputs
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.turns import turns_note

REFERENCE_FRAMES = 101
NUM_STEPS, STEP_S, DECODE_S = 4, 0.04, 0.03
"""Of ranks that sleep; a step is the longer one."""
LATENTS = (1, 3, 16, 60, 104)
"""Of a block at 832 x 480, fp32: 1.2 MB."""


class BlockingGroup(PipelineGroup):
    """A line whose sends wait until they are taken, by a rank that waits for them."""

    receives_ahead = False

    def _send(self, message: object, rank: int, tag: int) -> None:
        super()._send(message, rank, tag)  # pyright: ignore[reportArgumentType]
        self._wait(0)


LINES = {"two buffers": PipelineGroup, "blocking": BlockingGroup}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default="small_causal", help="folder, or the name of shipped weights")
    add("--frames", type=int, default=1001, help="of the video (%(default)s)")
    add("--blocks", type=int, default=150, help="of ranks that sleep (%(default)s)")
    add("--jitter", type=float, default=0.25, help="share of their time (%(default)s)")
    add("--repeats", type=int, default=3)


def measure(options: argparse.Namespace) -> Findings:
    for name, least in (("frames", 1), ("blocks", 4 * NUM_STEPS), ("repeats", 1)):
        checks.count(f"--{name}", getattr(options, name), least=least, most=100_000)
    if not 0 <= options.jitter <= 1:
        raise ValueError(f"--jitter is a share from 0 to 1, got {options.jitter}")
    numbers, rollout = of_networks(options)
    return Findings(
        "A line of ranks beside its slowest one",
        numbers | ofsleepers(options),
        weights=rollout.hashes(),
        notes=[
            turns_note(options.repeats),
            f"networks: {options.weights}, a video of {options.frames} frames from inputs that are "
            f"read, ranks pinned to cores; {rollout.described()}",
            f"ranks that sleep: {NUM_STEPS} steps of {1e3 * STEP_S:g} ms and {1e3 * DECODE_S:g} ms "
            f"for a block's pictures, each drawn within {options.jitter:.0%}; "
            f"{options.blocks} blocks, of which those in a full line count; a rank does one thing "
            "at a time",
        ],
    )


def of_networks(options: argparse.Namespace) -> tuple[dict[str, Number], Rollout]:
    """One process and a line of two, in turns, by real weights; the process alone. ValueError for
    weights that are not causal, before a process starts."""
    block = read_card(weights_folder(options.weights)).can.causal_block
    if block is None:
        raise ValueError(
            f"--weights are causal ones, the only that have a line, got {options.weights}"
        )
    request = Request.of(reference="", audio="")
    case = first_case(num_frames=options.frames, reference_frames=REFERENCE_FRAMES, size=64)
    line = AvatarPipeline.from_pretrained(options.weights, device="cpu", devices=2)
    with closing(line), all_cores_kept():
        alone = AvatarPipeline.from_pretrained(options.weights, device="cpu")
        torch.set_num_threads(1)
        pin_ranks()
        card = alone.card
        asked = {
            "num_steps": num_steps_of(None, card),
            "guidance_audio": card.guidance_audio,
            "guidance_motion": card.guidance_motion,
        }
        rollout = Rollout(alone, request.changed(**asked))
        inputs = build_inputs(rollout, case, REFERENCE_FRAMES)
        length = resolve_chunk_latents(rollout.request, card)
        chunks = plan(options.frames, chunk_latents=length).chunks
        num = sum(len(split_blocks(chunk, block)) for chunk in chunks)
        times: dict[str, list[tuple[float, float, float]]] = {"one": [], "line": []}
        for turn in range(options.repeats + 1):
            for way, pipeline in (("one", alone), ("line", line)):
                before, start_s = busy(), time.perf_counter()
                for _ in pipeline.stream(inputs, rollout.request):
                    pass
                wall_s, after = time.perf_counter() - start_s, busy()
                least_s, most_s = sorted(b - a for a, b in zip(before, after, strict=True))
                if turn:
                    times[way].append((wall_s, most_s, least_s))
    rates = {way: [num / wall_s for wall_s, *_ in some] for way, some in times.items()}
    shares = {
        "share": [most_s / wall_s for wall_s, most_s, _ in times["line"]],
        "other": [least_s / wall_s for wall_s, _, least_s in times["line"]],
    }
    over = [a / b for (a, *_), (b, *_) in zip(times["one"], times["line"], strict=True)]
    words = {"one": "one process of 1 thread", "line": "a line of 2 ranks of 1 thread"}
    found = {
        way: median_of_repeats(rates[way]).described(f"networks, {label}", unit="blocks/s")
        for way, label in words.items()
    }
    return found | {
        "one_over_line": median_of_repeats(over).described("networks, time of one over the line's"),
        "share": median_of_repeats(shares["share"]).described(
            "networks, rate of the line, share of its slowest rank's", target="≥ 0.9"
        ),
        "other": median_of_repeats(shares["other"]).described(
            "networks, share of the time in which the other rank computes"
        ),
    }, rollout


@contextmanager
def all_cores_kept() -> Iterator[None]:
    """Threads and cores of this process are behind the block what they were."""
    num, cores = torch.get_num_threads(), psutil.Process().cpu_affinity()
    try:
        yield
    finally:
        torch.set_num_threads(num)
        psutil.Process().cpu_affinity(cores)


def pin_ranks() -> None:
    """Rank 0, this process, on the first core, and the other one on the second. ValueError where
    there is one core."""
    cores = (psutil.Process().cpu_affinity() or [])[:2]
    if len(cores) < 2:
        raise ValueError("a line of two ranks needs two cores")
    for process, core in zip(ranks(), cores, strict=True):
        for thread in process.threads():
            with suppress(psutil.Error):
                psutil.Process(thread.id).cpu_affinity([core])
        process.cpu_affinity([core])


def ranks() -> list[psutil.Process]:
    """This process, and those below it that are ranks: others that multiprocessing starts only
    wait."""
    children = psutil.Process().children()
    others = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return [psutil.Process(), *others]


def busy() -> list[float]:
    """Seconds of the processor that each rank has had."""
    times = [process.cpu_times() for process in ranks()]
    return [own.user + own.system for own in times]


def ofsleepers(options: argparse.Namespace) -> dict[str, Number]:
    """Lines of two ranks up to one that decodes and one for each step, which sleep."""
    numbers: dict[str, Number] = {}
    for size in range(2, NUM_STEPS + 2):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(  # pyright: ignore[reportPrivateImportUsage]
                sleeper, (size, options, Path(folder)), size, start_method="spawn"
            )
            found: dict[str, list[float]] = torch.load(Path(folder) / "found.pt")
        slowest_s = max(work_s(size))
        for name, rates in found.items():
            key = f"sleep_{size}_{name.replace(' ', '_')}"
            numbers[key] = median_of_repeats(rates).described(
                f"{size} ranks that sleep, {name}", unit="blocks/s"
            )
            numbers[f"{key}_share"] = median_of_repeats([r * slowest_s for r in rates]).described(
                f"{size} ranks that sleep, {name}: share of the slowest rank's rate",
                target="≥ 0.9" if name == "two buffers" else "",
            )
    return numbers


def work_s(size: int) -> list[float]:
    """Seconds of a block on each rank; the first one decodes."""
    work = [len(steps) * STEP_S for steps in steps_of_ranks(NUM_STEPS, size)]
    return [work[0] + DECODE_S, *work[1:]]


def sleeper(rank: int, size: int, options: argparse.Namespace, folder: Path) -> None:
    """A rank of a line. Two threads of the first one share it: it does one thing at a time."""
    torch.set_num_threads(1)
    place = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=size)
    group = dist.group.WORLD
    assert group is not None
    draws, device = random.Random(rank), threading.Lock()

    def work(seconds: float) -> None:
        with device:
            time.sleep(seconds * draws.uniform(1 - options.jitter, 1 + options.jitter))

    rates: dict[str, list[float]] = {name: [] for name in LINES}
    for turn in range(options.repeats):
        for name in LINES if turn % 2 else reversed(LINES):
            line = LINES[name](group, steps_of_ranks(NUM_STEPS, size))
            dist.barrier()
            times_s = [time.perf_counter() for _ in _blocks(line, options.blocks, work)]
            if (
                rank == 0
            ):  # of a line that is full: it is neither at the first nor at the last blocks
                first, *others = times_s[size:-size]
                rates[name].append(len(others) / (others[-1] - first))
    if rank == 0:
        torch.save(rates, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _blocks(line: PipelineGroup, num: int, work: Callable[[float], None]) -> Iterator[int]:
    """One for each block that is done, on the first rank. Stages and threads are those of
    generation."""

    def sampled(items: Iterator[int]) -> Iterator[Tensor]:
        sound = torch.zeros(1, 3, 4, 768)
        for _ in line.along(items, lambda i: (sound, i), lambda x, i: i):
            x = line.take(torch.zeros(LATENTS))
            for _ in line.steps:
                work(STEP_S)
            line.give(x)
            yield x

    def finished(parts: Iterator[Tensor]) -> Iterator[Tensor]:
        for x in parts:
            if line.is_last:
                line.hand_back(x)
            if line.is_first:
                yield line.handed_back()

    def decoded(parts: Iterator[Tensor]) -> Iterator[int]:
        for _ in parts:
            work(DECODE_S)
            yield 1

    if line.is_first:
        yield from pipelined(iter(range(num)), sampled, finished, decoded, places=line.size)
        line.stop()
    else:
        with suppress(Stopped):
            yield from chained((), sampled, finished, decoded)
        line.end()
