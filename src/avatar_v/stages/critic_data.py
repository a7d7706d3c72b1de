"""Frames for the critics: grids of persons times scenes, rendered from the world, with truth.

Inside a grid every person is seen in every scene, so that nothing of a scene tells who it is. The
moments shown are spread over the range of mouth openings of real speech motion.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
from jaxtyping import Float, Int, UInt8
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene
from avatar_v.world.splits import Split, persons, scenes, sentences

SIZE = 64


@dataclass(frozen=True)
class LabelledFrames:
    """Single pictures with what is true of them."""

    images: UInt8[Tensor, "n 3 h w"]
    motion: Float[Tensor, "n m"]
    person: Int[Tensor, " n"]
    scene: Int[Tensor, " n"]

    def __getitem__(self, index: Int[Tensor, " k"]) -> "LabelledFrames":
        return self._map(lambda x: x[index])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "LabelledFrames":
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def _map(self, fn: Callable[[Tensor], Tensor]) -> "LabelledFrames":
        names = [field.name for field in dataclasses.fields(self)]
        return LabelledFrames(**{name: fn(getattr(self, name)) for name in names})

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class GridPlan:
    """Which frames: ``num_grids`` grids of ``num_persons`` x ``num_scenes`` x ``num_moments``."""

    split: Split
    num_grids: int
    num_persons: int = 16
    num_scenes: int = 4
    num_moments: int = 4
    speech_frames: int = 61

    @property
    def per_grid(self) -> int:
        return self.num_persons * self.num_scenes * self.num_moments


def render_grid(plan: GridPlan, index: int) -> LabelledFrames:
    """Grid ``index`` of a plan, the same bytes in any process; order (person, scene, moment).

    A person speaks one sentence; each scene shows other moments of it, in which the face is free.
    """
    scene_ids = scenes(plan.split, plan.num_scenes, index * plan.num_scenes)
    shots = []
    for person_id in persons(plan.split, plan.num_persons, index * plan.num_persons):
        speech_id = sentences(plan.split, 1, person_id % 100_000)[0]
        clip = make_clip(
            person_id,
            scene_ids[0],
            speech_id,
            num_frames=plan.speech_frames,
            size=SIZE,
            render_video=False,
        )
        moments = _moments(clip.motion, plan, torch.Generator().manual_seed(person_id))
        for scene_id, chosen in zip(scene_ids, moments, strict=True):
            motion = clip.motion[chosen]
            shot = render(
                sample_person(person_id), sample_scene(scene_id), motion, size=SIZE, seed=person_id
            )
            shots.append(_labelled(shot.video, motion, person_id, scene_id))
    return concatenate(shots)


def concatenate(parts: list[LabelledFrames]) -> LabelledFrames:
    fields = [field.name for field in dataclasses.fields(LabelledFrames)]
    return LabelledFrames(**{f: torch.cat([getattr(part, f) for part in parts]) for f in fields})


def load_frames(plan: GridPlan, cache: Path) -> LabelledFrames:
    """All grids of a plan, from ``cache`` if it still shows what the world renders now."""
    name = hashlib.sha256(json.dumps(dataclasses.asdict(plan)).encode()).hexdigest()[:12]
    path = cache / f"critic_frames_{plan.split}_{name}.safetensors"
    first = render_grid(plan, 0)
    if path.is_file():
        frames = LabelledFrames(**load_file(path))
        if torch.equal(frames.images[: plan.per_grid], first.images):
            return frames
    rest = track(range(1, plan.num_grids), f"rendering {plan.split} frames", transient=True)
    frames = concatenate([first, *(render_grid(plan, index) for index in rest)])
    cache.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(dataclasses.asdict(frames), partial)
    partial.replace(path)
    return frames


class CriticFrames(L.LightningDataModule):
    """Batches of labelled frames: ``grids_per_batch`` grids, ``frames_per_cell`` moments each.

    ``frames_per_cell`` None takes all moments of a cell (one person in one scene). Validation goes
    once through all validation frames, grid by grid.
    """

    def __init__(
        self,
        train_grids: int,
        validation_grids: int,
        grids_per_batch: int,
        batches_per_epoch: int,
        frames_per_cell: int | None = None,
        cache: str = "runs/critic_frames",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.train_plan = GridPlan("train", train_grids)
        self.validation_plan = GridPlan("validation", validation_grids)
        if not 1 <= grids_per_batch <= train_grids:
            raise ValueError(f"grids_per_batch is 1 … {train_grids}, got {grids_per_batch}")
        if frames_per_cell and frames_per_cell > self.train_plan.num_moments:
            limit = self.train_plan.num_moments
            raise ValueError(f"frames_per_cell is at most {limit}, got {frames_per_cell}")
        self.grids_per_batch = grids_per_batch
        self.batches_per_epoch = batches_per_epoch
        self.frames_per_cell = frames_per_cell
        self.cache = Path(cache)
        self.seed = seed

    def setup(self, stage: str) -> None:
        self.train_frames = load_frames(self.train_plan, self.cache)
        self.validation_frames = load_frames(self.validation_plan, self.cache)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(_Grids(self), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        frames = self.validation_frames
        order = torch.arange(len(frames)).split(self.validation_plan.per_grid)
        return DataLoader([frames[index] for index in order], batch_size=None)  # pyright: ignore


class _Grids(IterableDataset):
    """Epochs of random grids and moments; a draw depends on the seed and the epoch's number."""

    def __init__(self, data: CriticFrames) -> None:
        self.data = data
        self.epoch = 0

    def __iter__(self) -> Iterator[LabelledFrames]:
        data, plan = self.data, self.data.train_plan
        generator = torch.Generator().manual_seed(data.seed * 1_000_003 + self.epoch)
        self.epoch += 1
        num_taken = data.frames_per_cell or plan.num_moments
        cells = plan.num_persons * plan.num_scenes
        for _ in range(data.batches_per_epoch):
            grids = torch.randperm(plan.num_grids, generator=generator)[: data.grids_per_batch]
            starts = (grids[:, None] * cells + torch.arange(cells)).flatten() * plan.num_moments
            picks = torch.rand(len(starts), plan.num_moments, generator=generator).argsort(1)
            yield data.train_frames[(starts[:, None] + picks[:, :num_taken]).flatten()]


def _moments(
    motion: Float[Tensor, "f m"], plan: GridPlan, generator: torch.Generator
) -> Int[Tensor, "s k"]:
    """Frame numbers per scene: one from each of as many ranks of mouth opening as are needed."""
    num_needed = plan.num_scenes * plan.num_moments
    free = (motion[:, MOTION_NAMES.index("cover")] < 0.02).nonzero()[:, 0]
    opening = motion[free, MOTION_NAMES.index("mouth_open")]
    ranked = free[opening.argsort()]
    at = (torch.arange(num_needed) + torch.rand(num_needed, generator=generator)) / num_needed
    chosen = ranked[(at * len(ranked)).long().clamp(max=len(ranked) - 1)]
    order = torch.randperm(num_needed, generator=generator)
    return chosen[order].reshape(plan.num_scenes, plan.num_moments)


def _labelled(
    images: UInt8[Tensor, "n 3 h w"], motion: Float[Tensor, "n m"], person_id: int, scene_id: int
) -> LabelledFrames:
    n = len(images)
    return LabelledFrames(images, motion, torch.full((n,), person_id), torch.full((n,), scene_id))
