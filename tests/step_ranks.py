"""The work of the ranks in numerics/test_timestep.py: videos by ranks with steps of their own.

One set of processes makes the video of every case, and rank 0 makes each alone, too.
"""

import dataclasses
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from avatar_v.generate import generator
from avatar_v.generate.generator import AudioChunk, audio_chunks, finished_chunks, sample_chunks
from avatar_v.generate.pipelining import chained, pipelined
from avatar_v.inputs.person import EncodedPerson
from avatar_v.models.causal import as_causal
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.parallel.timestep import PipelineGroup, Stopped
from avatar_v.sampling.settings import Settings
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from forked import spawn
from generating import picture, sound
from random_models import make_motion_net, randomise

NUM_RANKS = 3
PLAIN = Settings(5, num_steps=3, guidance_audio=1.0, anchor=False, window_latents=8, seed=3)


@dataclass(frozen=True)
class Case:
    """A video of 11 latents, and how many steps each rank makes."""

    settings: Settings
    mapping: tuple[int, ...]
    inside: bool = False  # guidance
    moves: bool = True  # there is a motion network
    num_frames: int = 41
    num_taken: int | None = None  # chunks, before the video is closed; None: all

    @property
    def steps(self) -> list[range]:
        stops = [sum(self.mapping[: i + 1]) for i in range(len(self.mapping))]
        return [range(stop - num, stop) for stop, num in zip(stops, self.mapping, strict=True)]


CASES = {
    "a step each": Case(PLAIN, (1, 1, 1)),
    "anchor, passes and noise": Case(
        dataclasses.replace(
            PLAIN, num_steps=5, guidance_audio=2.0, guidance_text=1.5, overshoot=0.5, anchor=True
        ),
        (1, 3, 1),
    ),
    "no first frame": Case(
        dataclasses.replace(PLAIN, renoise=True, from_prompt=True, anchor=True, chunk_latents=8),
        (2, 1),
    ),
    "the sink is replaced": Case(
        dataclasses.replace(PLAIN, anchor=True, streaming=Streaming(sink="replaced")), (1, 2)
    ),
    "the first one decodes": Case(
        dataclasses.replace(PLAIN, num_steps=2, anchor=True, from_prompt=True, renoise=True),
        (0, 1, 1),
    ),
    "guidance inside": Case(PLAIN, (1, 2), inside=True, moves=False, num_frames=38),
    "closed": Case(dataclasses.replace(PLAIN, chunk_latents=17), (1, 1, 1), False, False, 605, 1),
}


def networks(case: Case) -> tuple[AvatarDiT, Conditioner]:
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    dit = with_guidance_inside(dit, ((1.0, 4.0),) * 3) if case.inside else dit
    randomise(dit)
    if case.moves:
        conditioner.motion_net = make_motion_net(conditioner.audio_encoder.dim)
    return as_causal(dit, block=3, window=2).eval(), conditioner.eval()


@torch.inference_mode()
def speaker(case: Case, conditioner: Conditioner) -> EncodedPerson:
    reference = conditioner.encode_reference(make_batch(1, 13, 32))
    assert reference.motion is not None
    return EncodedPerson(picture(), reference, reference.motion[:, :1] if case.moves else None)


def latents_of(case: Case, line: PipelineGroup | None) -> Tensor | None:
    """The latents that are taken, on rank 0; None on others."""
    dit, conditioner = networks(case)
    person, settings = speaker(case, conditioner), case.settings

    def sampled(chunks: Any) -> Any:
        how = (AudioChunk.tokens, AudioChunk.of_tokens)
        spoken = chunks if line is None else line.along(chunks, *how)
        return sample_chunks(dit, conditioner, person, "a room", settings, spoken, line=line)

    heard = audio_chunks(conditioner, sound(case.num_frames), settings.chunk_latents)
    if line is None:
        made = chained(heard, sampled)
    elif line.is_first:
        made = pipelined(
            heard, sampled, lambda parts: finished_chunks(line, parts), places=line.size
        )
    else:
        made = chained((), sampled, lambda parts: finished_chunks(line, parts))
    parts = []
    with closing(made), suppress(Stopped):
        parts += [part.latents for part in islice(made, case.num_taken)]
        if isinstance(line, Watched) and line.is_first:
            line.rest()
    if line is not None:
        line.stop() if line.is_first else line.end()
    return torch.cat(parts, dim=1) if parts else None


class Watched(PipelineGroup):
    """A line whose last rank begins its first block when rank 0 has handed on its second one, or
    its first, where the second waits for the end of that (``num_ahead``)."""

    store: Store
    num_ahead = 2
    num_given = num_taken = 0

    def give(self, block: Tensor) -> None:
        super().give(block)
        self.num_given += 1
        if self.is_first and self.num_given == self.num_ahead:
            self.store.set("second block", "handed on")

    def rest(self) -> None:
        """Until this rank can hand on no more: nothing that is finished is taken."""
        before = -1
        while before != self.num_given:
            before = self.num_given
            time.sleep(0.5)

    def take(self, noise: Tensor) -> Tensor:
        x = super().take(noise)
        self.num_taken += 1
        if self.is_last and self.num_taken == 1:
            self.store.wait(["second block"], timedelta(seconds=120))
        return x


def work(index: int, folder: Path) -> None:
    """A rank above 0 of its own process."""
    torch.set_num_threads(1)
    found_by(index + 1, folder)


def found_by(rank: int, folder: Path) -> None:
    """Write of each case the latents, on rank 0, and of how many steps this rank kept keys."""
    store = FileStore(str(folder / "store"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    limit = timedelta(seconds=120)  # for one that waits for ever
    groups = {num: dist.new_group(range(num), timeout=limit) for num in (2, 3)}
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        if rank >= len(case.mapping):
            continue
        group = groups[len(case.mapping)]
        assert isinstance(group, ProcessGroup)
        line = Watched(group, case.steps)
        line.store = PrefixStore(name, store)
        line.num_ahead = 1 if case.settings.streaming.sink == "replaced" else 2
        with pytest.MonkeyPatch.context() as patch:
            kept = counted(patch)
            together = latents_of(case, line)
        found[name] = {"caches": kept, "together": together}
        if rank == 0:
            found[name]["alone"] = latents_of(case, None)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def counted(patch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of steps in the histories that are made from now on."""
    make_blocks, kept = generator.make_blocks, set[int]()

    def noting(*given: Any) -> Any:
        states, carry = make_blocks(*given)
        assert carry.history is not None
        kept.add(len(carry.history.caches))
        return states, carry

    patch.setattr(generator, "make_blocks", noting)
    return kept


def main(folder: Path) -> list[dict[str, Any]]:
    """What each rank found. This process is rank 0."""
    num_threads = torch.get_num_threads()
    others = spawn(work, (folder,), NUM_RANKS - 1, join=False)
    assert others is not None
    torch.set_num_threads(1)
    found_by(0, folder)
    others.join()
    torch.set_num_threads(num_threads)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(NUM_RANKS)]
