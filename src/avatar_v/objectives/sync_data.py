"""Clips for the sync critic: short runs of pictures with the MFCCs of their sound.

Read once from the same shards as everything else and kept in memory: pictures as bytes (0.8 MB for
65 frames at 64 x 64) and MFCCs. A batch is a run from each of several clips; all windows of a run
are used, so that a sound's hardest rivals, the same voice a few frames off, are always there.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from avatar_v.base import checks
from avatar_v.base.progress import track
from avatar_v.critics.sync import STEPS_PER_FRAME, WINDOW_FRAMES, mfcc
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import to_float


@dataclass(frozen=True)
class SyncRuns:
    """Runs of clips; step 4 i of the sound begins with frame i."""

    images: UInt8[Tensor, "b f 3 h w"]
    sound: Float[Tensor, "b t 13"]  # t = 4 f
    motion: Float[Tensor, "b f m"]

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "SyncRuns":
        tensors = (self.images, self.sound, self.motion)
        return SyncRuns(*[x.to(device, non_blocking=non_blocking) for x in tensors])


@dataclass(frozen=True)
class SyncClips:
    """Clips of one length, with the frames at which a run without a hidden face may start."""

    runs: SyncRuns
    may_start: Bool[Tensor, "b f"]

    def __len__(self) -> int:
        return len(self.runs)

    def take(self, clips: Int[Tensor, " k"], start: Int[Tensor, " k"], num_frames: int) -> SyncRuns:
        """``num_frames`` frames of each of ``clips`` from frame ``start`` on."""
        frames = start[:, None] + torch.arange(num_frames)
        steps = STEPS_PER_FRAME * start[:, None] + torch.arange(STEPS_PER_FRAME * num_frames)
        rows = clips[:, None]
        return SyncRuns(
            self.runs.images[rows, frames], self.runs.sound[rows, steps],
            self.runs.motion[rows, frames],
        )  # fmt: skip


def read_sync_clips(
    folders: Sequence[str | Path], *, num_frames: int, run_frames: int
) -> SyncClips:
    """The first ``num_frames`` frames of every clip in ``folders`` that show a face for a run.

    The last frame of them is not used, because its MFCCs are cut off with the sound. Clips without
    a run of ``run_frames`` visible faces are left out with a warning. ValueError for clips that are
    shorter, have latents alone, or if none is left.
    """
    clips = [clip for folder in folders for clip in read_folder(folder)]
    images, sound, motion, may_start = [], [], [], []
    for clip in track(clips, "reading clips"):
        sample = read_clip(clip)
        if sample.video is None or len(sample.video) < num_frames:
            raise ValueError(
                f"{clip.shard}, clip {clip.key}: expected pictures of {num_frames} frames, "
                f"got {sample.meta.num_frames} frames{' of latents' * (sample.video is None)}"
            )
        kept = num_frames - 1
        visible = sample.valid[:kept].unfold(0, run_frames, 1).all(1)
        if not visible.any():
            continue
        images.append(sample.video[:kept])
        sound.append(mfcc(to_float(sample.audio))[: STEPS_PER_FRAME * kept])
        motion.append(sample.motion[:kept])
        may_start.append(visible)
    if not images:
        raise ValueError(f"{folders}: no clip shows a face for {run_frames} frames")
    if len(images) < len(clips):
        warnings.warn(
            f"{len(clips) - len(images)} of {len(clips)} clips are left out: the face is hidden",
            stacklevel=2,
        )
    runs = SyncRuns(torch.stack(images), torch.stack(sound), torch.stack(motion))
    return SyncClips(runs, torch.stack(may_start))


class SyncData(L.LightningDataModule):
    """Batches of ``clips_per_batch`` clips, a run of ``windows_per_clip`` windows from each.

    Validation goes once through the first run of every clip of its folder. ValueError if a clip is
    too short for a run or there are fewer clips than a batch holds.
    """

    def __init__(
        self,
        train: list[str],
        validation: list[str],
        clips_per_batch: int,
        windows_per_clip: int,
        batches_per_epoch: int,
        num_frames: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        checks.count("clips_per_batch", clips_per_batch)
        checks.count("windows_per_clip", windows_per_clip)
        checks.count("batches_per_epoch", batches_per_epoch)
        checks.count("num_frames", num_frames)
        checks.seed("seed", seed)
        self.run_frames = windows_per_clip + WINDOW_FRAMES - 1
        if num_frames <= self.run_frames:
            raise ValueError(
                f"{windows_per_clip} windows a clip need num_frames > {self.run_frames}, "
                f"got {num_frames}"
            )
        self.train = train
        self.validation = validation
        self.clips_per_batch = clips_per_batch
        self.batches_per_epoch = batches_per_epoch
        self.num_frames = num_frames
        self.seed = seed

    def setup(self, stage: str) -> None:
        read = {"run_frames": self.run_frames}
        self.train_clips = read_sync_clips(self.train, num_frames=self.num_frames, **read)
        if len(self.train_clips) < self.clips_per_batch:
            raise ValueError(
                f"{self.train}: {len(self.train_clips)} clips, a batch needs {self.clips_per_batch}"
            )
        self.validation_clips = read_sync_clips(
            self.validation, num_frames=self.run_frames + 1, **read
        )

    def train_dataloader(self) -> RandomLoader:
        return RandomLoader(self._draw, self.batches_per_epoch, self.seed)

    def val_dataloader(self) -> DataLoader:
        clips = self.validation_clips
        parts = torch.arange(len(clips)).split(16)
        runs = [clips.take(part, torch.zeros_like(part), self.run_frames) for part in parts]
        return DataLoader(runs, batch_size=None)  # pyright: ignore

    def _draw(self, generator: torch.Generator) -> SyncRuns:
        """Random clips, each from a random start."""
        clips = self.train_clips
        chosen = torch.randperm(len(clips), generator=generator)[: self.clips_per_batch]
        weights = clips.may_start[chosen].float()
        start = torch.multinomial(weights, 1, generator=generator)[:, 0]
        return clips.take(chosen, start, self.run_frames)
