"""Judged videos for the preference model: what frozen networks say of both samples of every pair.

The features are computed once, when a run begins: 2 kB a sample. Samples that several pairs hold,
of several raters or against several others, are read once, and with ``kept`` by one of several
runs.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.base.progress import track
from avatar_v.base.states import read_tensors
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.rewards.features import Features
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.shards.loader import levelled, read_folder
from avatar_v.shards.pairs import PORTRAIT, VIDEOS, WINNERS, Pair, read_judgment, read_pair
from avatar_v.shards.schema import AUDIO, to_float
from avatar_v.shards.writer import ClipEntry


@dataclass(frozen=True)
class PairFeatures:
    """Pairs by their features, and what was said of them."""

    first: Float[Tensor, "p d"]
    second: Float[Tensor, "p d"]
    winner: Int[Tensor, " p"]  # in the order of pairs.WINNERS
    axis: Int[Tensor, " p"]  # of the model
    person: Int[Tensor, " p"]  # numbered within the set

    def __len__(self) -> int:
        return len(self.winner)

    def __getitem__(self, index: Int[Tensor, " k"]) -> "PairFeatures":
        return PairFeatures(*[x[index] for x in self._tensors()])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PairFeatures":
        return PairFeatures(*[x.to(device, non_blocking=non_blocking) for x in self._tensors()])

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]


class PreferenceData(L.LightningDataModule):
    """Batches of judged pairs, drawn anew by the seed; validation goes once through its pairs.

    Args:
        train: Folders of shards of judged videos.
        validation: The same of other persons, two or more.
        batch_size: Pairs.
        batches_per_epoch: Steps between two validations.
        ties: False leaves out the pairs that are ties.
        kept: A folder in which features are left, and taken from if they are there.
        shuffled: Deal the winners of the training pairs out among them anew: a control whose pairs
            say nothing.
        seed: Of order and shuffling.
    """

    train_pairs: PairFeatures
    validation_pairs: PairFeatures

    def __init__(
        self,
        train: list[str],
        validation: list[str],
        batch_size: int,
        batches_per_epoch: int,
        ties: bool = True,
        kept: str | None = None,
        shuffled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        checks.count("batch_size", batch_size)
        checks.count("batches_per_epoch", batches_per_epoch)
        checks.seed("seed", seed)
        self.train, self.validation = train, validation
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self.ties, self.shuffled, self.seed = ties, shuffled, seed
        self.kept = None if kept is None else Path(kept)

    def read(self, model: PreferenceModel, features: Features) -> None:
        """Read all pairs by their features, with the axes of the model.

        ValueError for pairs without pictures, axes that the model lacks, fewer than two persons in
        validation, and persons who are in both.
        """
        clips = {"train": _clips(self.train, self.ties)}
        clips["validation"] = _clips(self.validation, self.ties)
        persons = {name: {clip.person for clip in found} for name, found in clips.items()}
        if both := persons["train"] & persons["validation"]:
            raise ValueError(f"in training and in validation: {', '.join(sorted(both)[:5])}")
        if len(persons["validation"]) < 2:
            raise ValueError(f"{self.validation}: an interval needs pairs of two persons or more")
        self.validation_pairs = read_features(clips["validation"], model, features, self.kept)
        pairs = read_features(clips["train"], model, features, self.kept)
        if self.shuffled:
            dealt = np.random.default_rng(self.seed).permutation(pairs.winner.numpy())
            pairs = dataclasses.replace(pairs, winner=torch.from_numpy(dealt))
        self.train_pairs = pairs

    def train_dataloader(self) -> RandomLoader:
        return RandomLoader(self._draw, self.batches_per_epoch, self.seed)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([self.validation_pairs], batch_size=None)  # pyright: ignore

    def _draw(self, generator: torch.Generator) -> PairFeatures:
        pairs = self.train_pairs
        return pairs[torch.randint(len(pairs), (self.batch_size,), generator=generator)]


def read_features(
    clips: Sequence[ClipEntry],
    model: PreferenceModel,
    features: Features,
    kept: Path | None = None,
) -> PairFeatures:
    """The pairs of an index, read where the model is. Errors as in `PreferenceData.read`."""
    judgments = [read_judgment(clip) for clip in clips]
    axis = model.axis_numbers([judgment.axis for judgment in judgments])
    path = None if kept is None else kept / f"features-{features.hash()}.safetensors"
    known = read_tensors(path) if path is not None and path.is_file() else {}
    num_known = len(known)
    device = model.center.device
    rows = [_rows(clip, features, known, device) for clip in track(clips, "reading pairs")]
    if path is not None and len(known) > num_known:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            save_file(known, temporary)
    persons = {person: i for i, person in enumerate(sorted({clip.person for clip in clips}))}
    return PairFeatures(
        torch.stack([first for first, _ in rows]),
        torch.stack([second for _, second in rows]),
        torch.tensor([WINNERS.index(judgment.winner) for judgment in judgments]),
        axis,
        torch.tensor([persons[clip.person] for clip in clips]),
    )


def _clips(folders: Sequence[str], ties: bool) -> list[ClipEntry]:
    clips = [clip for folder in folders for clip in read_folder(folder)]
    if not ties:
        clips = [clip for clip in clips if read_judgment(clip).winner != "tie"]
        if not clips:
            raise ValueError(f"{', '.join(folders)}: all pairs are ties, and ties is false")
    return clips


def _rows(
    clip: ClipEntry, features: Features, known: dict[str, Tensor], device: torch.device
) -> list[Float[Tensor, " d"]]:
    """The features of both samples; equal bytes are read once. The portrait stands for all that is
    known of the person."""
    shared = [str(clip.members[name].crc32) for name in (AUDIO, PORTRAIT) if name in clip.members]
    keys = [
        "-".join([*shared, str(clip.members[name].crc32)]) if name in clip.members else ""
        for name in VIDEOS
    ]
    if any(key not in known for key in keys):
        pair = read_pair(clip, pictures=True)
        assert pair.pictures is not None
        videos = (pair.pictures.first, pair.pictures.second)
        for key, video in zip(keys, videos, strict=True):
            if key not in known:
                known[key] = compute_features(features, pair, video, device).cpu()
    return [known[key] for key in keys]


def compute_features(
    features: Features,
    pair: Pair,
    video: UInt8[Tensor, "f 3 h w"],
    device: torch.device,
) -> Float[Tensor, " d"]:
    """The features of a sample of a pair, made on ``device``."""
    assert pair.pictures is not None
    shown, portrait = (x[None].float() / 127.5 - 1 for x in (video, pair.pictures.portrait))
    audio = to_float(levelled(pair.clip).audio)[None]
    own = (pair.reference[None], pair.reference_valid[None])
    inputs = (shown, audio, portrait, *own, torch.zeros(1, dtype=torch.long))
    return features(*(x.to(device) for x in inputs))[0]
