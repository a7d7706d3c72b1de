"""Pictures for the critics, from the same shards as everything else: one person in several scenes.

A batch shows each of its persons once in each of several scenes. The moments kept of a clip are
spread over the range of its mouth openings. Videos are read once and only these moments are kept.
Shards of latents alone show what a VAE decodes them to, as critics will see generated video.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from avatar_v.base import checks
from avatar_v.base.device import chosen_precision
from avatar_v.base.progress import track
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.shards.loader import read_clip, read_folder
from avatar_v.shards.schema import Sample
from avatar_v.types import MOTION_NAMES

DECODED_LATENTS = 7  # 25 frames: the decoder is causal, so a beginning needs nothing after it


@dataclass(frozen=True)
class LabelledFrames:
    """Single pictures with what is true of them."""

    images: UInt8[Tensor, "n 3 h w"]
    motion: Float[Tensor, "n m"]
    person: Int[Tensor, " n"]  # numbered within the set
    scene: Int[Tensor, " n"]

    def __getitem__(self, index: Int[Tensor, " k"]) -> "LabelledFrames":
        return self._map(lambda x: x[index])

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "LabelledFrames":
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def _map(self, fn: Callable[[Tensor], Tensor]) -> "LabelledFrames":
        names = [field.name for field in dataclasses.fields(self)]
        return LabelledFrames(**{name: fn(getattr(self, name)) for name in names})


def read_frames(
    folders: Sequence[str | Path], *, num_moments: int, seed: int, vae: VideoVAE | None = None
) -> LabelledFrames:
    """``num_moments`` pictures of every clip in ``folders``, clip after clip.

    Where a clip has latents alone, they are of its beginning (``DECODED_LATENTS``), by ``vae``.
    Clips without a valid frame are left out. ValueError if there are no shards, no clip is left,
    or there is no VAE for latents.
    """
    generator = torch.Generator().manual_seed(seed)
    persons: dict[str, int] = {}
    scenes: dict[str, int] = {}
    images, motion, labels = [], [], []
    clips = [clip for folder in folders for clip in read_folder(folder)]
    for clip in track(clips, "reading clips"):
        sample = read_clip(clip)
        video = _decoded(sample, vae) if sample.video is None else sample.video
        opening = sample.motion[: len(video), MOTION_NAMES.index("mouth_open")]
        valid = sample.valid[: len(video)]
        if not bool(valid.any()):
            continue
        chosen = spread_moments(opening, valid, num_moments, generator)
        images.append(video[chosen])
        motion.append(sample.motion[chosen])
        person = persons.setdefault(sample.meta.person, len(persons))
        scene = scenes.setdefault(sample.meta.scene, len(scenes))
        labels += [(person, scene)] * num_moments
    if not images:
        raise ValueError(f"no clip of {', '.join(map(str, folders))} shows a face")
    who, where = torch.tensor(labels).unbind(1)
    return LabelledFrames(torch.cat(images), torch.cat(motion), who, where)


def spread_moments(
    opening: Float[Tensor, " f"], valid: Bool[Tensor, " f"], num: int, generator: torch.Generator
) -> Int[Tensor, " num"]:
    """Numbers of valid frames: one from each of ``num`` equal ranks of mouth opening."""
    free = valid.nonzero()[:, 0]
    if len(free) == 0:
        raise ValueError("no frame of this clip shows a face")
    ranked = free[opening[free].argsort()]
    at = (torch.arange(num) + torch.rand(num, generator=generator)) / num
    return ranked[(at * len(ranked)).long().clamp(max=len(ranked) - 1)]


def _decoded(sample: Sample, vae: VideoVAE | None) -> UInt8[Tensor, "f 3 h w"]:
    if vae is None or sample.latents is None:
        raise ValueError(f"clip {sample.key} has latents alone; name the VAE that made them")
    if sample.meta.vae_hash != vae.hash():
        raise ValueError(
            f"clip {sample.key} has latents of VAE {sample.meta.vae_hash}, got {vae.hash()}"
        )
    bf16 = chosen_precision("auto", torch.device("cpu")) == "bf16"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        video = vae.decode(sample.latents[None, :DECODED_LATENTS].float())[0]
    return ((video.float() + 1) * 127.5).round().clamp(0, 255).byte().clone()


class CriticFrames(L.LightningDataModule):
    """Batches of ``persons_per_batch`` persons x ``scenes_per_person`` scenes, a moment of each.

    Persons with fewer scenes are left out of training; ValueError if too few are left. Validation
    goes once through all pictures of its folder.
    """

    def __init__(
        self,
        train: list[str],
        validation: list[str],
        persons_per_batch: int,
        scenes_per_person: int,
        batches_per_epoch: int,
        num_moments: int = 8,
        vae: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        checks.count("persons_per_batch", persons_per_batch)
        checks.count("scenes_per_person", scenes_per_person)
        checks.count("batches_per_epoch", batches_per_epoch)
        checks.count("num_moments", num_moments)
        checks.seed("seed", seed)
        self.train = train
        self.validation = validation
        self.persons_per_batch = persons_per_batch
        self.scenes_per_person = scenes_per_person
        self.batches_per_epoch = batches_per_epoch
        self.num_moments = num_moments
        self.vae = vae
        self.seed = seed

    def setup(self, stage: str) -> None:
        vae = VideoVAE.from_pretrained(self.vae) if self.vae else None
        read = {"num_moments": self.num_moments, "seed": self.seed, "vae": vae}
        self.train_frames = read_frames(self.train, **read)
        self.validation_frames = read_frames(self.validation, **read)

    def train_dataloader(self) -> RandomLoader:
        tables = self._clips_of_persons()

        def draw(generator: torch.Generator) -> LabelledFrames:
            """Random persons, scenes and moments."""
            order = torch.randperm(len(tables), generator=generator)
            chosen = [tables[i] for i in order[: self.persons_per_batch].tolist()]
            return self.train_frames[torch.cat([self._moments(t, generator) for t in chosen])]

        return RandomLoader(draw, self.batches_per_epoch, self.seed)

    def val_dataloader(self) -> DataLoader:
        frames = self.validation_frames
        parts = torch.arange(len(frames)).split(256)
        return DataLoader([frames[index] for index in parts], batch_size=None)  # pyright: ignore

    def _clips_of_persons(self) -> list[Int[Tensor, "clips k"]]:
        """Of each person with enough clips, the numbers of the pictures of every clip."""
        frames, of_person = self.train_frames, dict[int, list[Tensor]]()
        for clip in torch.arange(len(frames)).split(self.num_moments):
            of_person.setdefault(int(frames.person[clip[0]]), []).append(clip)
        tables = [torch.stack(c) for c in of_person.values() if len(c) >= self.scenes_per_person]
        if len(tables) < self.persons_per_batch:
            raise ValueError(
                f"{self.train}: {len(tables)} persons have {self.scenes_per_person} clips or "
                f"more, a batch needs {self.persons_per_batch}"
            )
        return tables

    def _moments(
        self, table: Int[Tensor, "clips k"], generator: torch.Generator
    ) -> Int[Tensor, " scenes"]:
        """One moment of each of ``scenes_per_person`` clips of one person."""
        clips = torch.randperm(len(table), generator=generator)[: self.scenes_per_person]
        moments = torch.randint(table.shape[1], (len(clips),), generator=generator)
        return table[clips, moments]
