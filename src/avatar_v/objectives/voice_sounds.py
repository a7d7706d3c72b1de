"""Sounds for the codec of speech: windows of a corpus of voices, which is kept in memory."""

from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from avatar_v.base import checks
from avatar_v.base.progress import track
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.voices.codec import Sound
from avatar_v.voices.corpus import corpus_files, read_recordings


class VoiceSounds(L.LightningDataModule):
    """Windows of so many frames of a corpus in memory, at random; validation: the first of each.

    Args:
        train: folder of `avatar-v-data voices`, as is ``validation``.
        batch_size: windows of a step.
        batches_per_epoch: between validations.
        num_frames: of a window.
        louder_db: the loudness of each window is moved by up to so much.
    """

    def __init__(
        self,
        train: str,
        validation: str,
        batch_size: int,
        batches_per_epoch: int,
        num_frames: int = 32,
        louder_db: float = 6.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        checks.count("batch_size", batch_size)
        checks.count("batches_per_epoch", batches_per_epoch)
        checks.count("num_frames", num_frames)
        checks.number("louder_db", louder_db, least=0, most=40)
        checks.seed("seed", seed)
        self.folders = {"train": Path(train), "validation": Path(validation)}
        self.batch_size, self.batches_per_epoch, self.seed = batch_size, batches_per_epoch, seed
        self.length, self.louder_db = num_frames * SAMPLES_PER_FRAME, louder_db

    def setup(self, stage: str) -> None:
        self.train_sounds, self.validation_sounds = (
            self._read(folder) for folder in self.folders.values()
        )

    def train_dataloader(self) -> RandomLoader:
        return RandomLoader(self._draw, self.batches_per_epoch, self.seed)

    def val_dataloader(self) -> DataLoader:
        firsts = torch.stack([sound[: self.length] for sound in self.validation_sounds])
        return DataLoader(list(firsts.split(self.batch_size)), batch_size=None)  # pyright: ignore

    def _draw(self, generator: torch.Generator) -> Sound:
        chosen = torch.randint(len(self.train_sounds), (self.batch_size,), generator=generator)
        rows = []
        for number in chosen.tolist():
            sound = self.train_sounds[number]
            start = int(torch.randint(len(sound) - self.length + 1, (), generator=generator))
            louder = 2 * torch.rand((), generator=generator) - 1
            rows.append(sound[start : start + self.length] * 10 ** (self.louder_db * louder / 20))
        return torch.stack(rows).clamp(-1, 1)

    def _read(self, folder: Path) -> list[Tensor]:
        found = []
        for path in track(corpus_files(folder), f"reading {folder}"):
            for one in read_recordings([path]):
                if len(one.sound) >= self.length:
                    found.append(torch.from_numpy(np.ascontiguousarray(one.sound)))
        if not found:
            raise ValueError(f"{folder}: no recording is {self.length} samples long")
        return found
