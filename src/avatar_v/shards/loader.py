"""From shards to batches: read clips by offset, in a planned order that can resume anywhere.

WebDataset's own loader streams a tar from its beginning: to resume exactly it would have to read
and throw away everything before, and it shuffles within a buffer whose state no checkpoint holds.
So the tars stay WebDataset tars (any of its readers takes them) but are read here by the offsets in
their indexes, from a disk or as ranges from an object store (store.py): a batch is a pure function
of the plan (buckets.py), whichever worker reads it.
"""

import dataclasses
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from avatar_v.critics.look import NUM_LANDMARKS
from avatar_v.media.sound import prepared
from avatar_v.motion.vectors import known_mask
from avatar_v.shards.buckets import BatchPlan, Bucket
from avatar_v.shards.folder import read_indexes
from avatar_v.shards.schema import (
    FACES,
    LATENTS,
    LOW,
    RAW_VIDEO,
    STILLS,
    TEXT,
    VIDEO,
    Sample,
    decode_sample,
    to_float,
    to_int16,
)
from avatar_v.shards.store import is_url, read_ranges
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry
from avatar_v.types import (
    SAMPLES_PER_FRAME,
    TEMPORAL_FACTOR,
    Batch,
    num_latents,
)


def read_folder(folder: str | Path) -> ClipTable:
    """Every clip of the finished shards in and below ``folder``, in the order of their paths.

    ValueError if there is none, a shard is damaged, or two shards hold a clip of one key.
    """
    table = ClipTable(clip for index in read_indexes(folder) for clip in index.clips)
    if not table:
        raise ValueError(f"{folder}: its shards hold no clips")
    return table


def read_clip(clip: ClipEntry, *, decode_video: bool = True, use_latents: bool = True) -> Sample:
    """Decode one clip. ValueError, naming shard and key, for bytes that are cut or changed."""
    of_latents = dict.fromkeys((LATENTS, FACES, STILLS, LOW), not use_latents)
    of_motion = not decode_video and not use_latents  # alone: no network reads the caption
    skipped = {VIDEO: not decode_video, RAW_VIDEO: not decode_video, TEXT: of_motion, **of_latents}
    members = read_members(clip, [m for m in clip.members if not skipped.get(m, False)])
    return decode_sample(clip.key, members, where=clip.shard, decode_video=decode_video)


def read_members(clip: ClipEntry, names: Sequence[str]) -> dict[str, bytes]:
    """Bytes of some members, checked against their CRC-32. Errors as in ``read_clip``."""
    at = [clip.members[name] for name in names]
    try:
        data = _read_at(clip.shard, [(member.offset, member.size) for member in at])
    except (OSError, ValueError) as error:
        raise ValueError(f"{clip.shard}, clip {clip.key}: cannot be read ({error})") from error
    members = dict(zip(names, data, strict=True))
    for name, data in members.items():
        member, where = clip.members[name], f"{clip.shard}, clip {clip.key}"
        if len(data) != member.size:
            raise ValueError(f"{where}: {name} is cut, {len(data)} of {member.size} bytes")
        if zlib.crc32(data) != member.crc32:
            raise ValueError(f"{where}: {name} is corrupt (its CRC-32 differs)")
    return members


def _read_at(shard: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes of a shard, as (offset, size)."""
    if is_url(shard):
        return read_ranges(shard, ranges)
    found = []
    with open(shard, "rb") as file:
        for offset, size in ranges:
            file.seek(offset)
            found.append(file.read(size))
    return found


class ClipReader:
    """Clip number i of an index, decoded, its sound prepared as for generation (media/sound.py).

    With ``cache`` each is decoded once and then kept.
    Kept clips stay in stored precision: about 0.2 MB for 101 frames as latents, 1.5 MB with the
    video at 64 x 64.
    """

    def __init__(
        self,
        clips: Sequence[ClipEntry],
        *,
        decode_video: bool,
        use_latents: bool,
        cache: bool = False,
    ):
        self.clips = clips
        self.decode_video = decode_video
        self.use_latents = use_latents
        self._kept: dict[int, Sample] | None = {} if cache else None

    def __call__(self, index: int) -> Sample:
        if self._kept is not None and index in self._kept:
            return self._kept[index]
        sample = levelled(
            read_clip(
                self.clips[index], decode_video=self.decode_video, use_latents=self.use_latents
            )
        )
        if self._kept is not None:
            self._kept[index] = sample
        return sample


def levelled(sample: Sample) -> Sample:
    """The clip with its sounds prepared as in generation."""
    audio, heard = (
        None if sound is None else to_int16(prepared(to_float(sound)))
        for sound in (sample.audio, sample.heard)
    )
    return dataclasses.replace(sample, audio=audio, heard=heard)


class PlannedBatches(Dataset[Batch]):
    """Batch number i of a plan. Nothing but the plan decides it, so any worker may read it."""

    def __init__(self, plan: Sequence[BatchPlan], load: Callable[[BatchPlan], Batch]):
        self.plan = plan
        self.load = load

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Batch:
        return self.load(self.plan[index])


def load_clips(plan: BatchPlan, read: Callable[[int], Sample]) -> Batch:
    """The clips of a plan, cut to its bucket, with their references."""
    rng = np.random.default_rng(plan.seed)

    def load(clips: Sequence[int]) -> Batch:
        return collate([fit_sample(read(index), plan.bucket, rng) for index in clips])

    batch = load(plan.clips)
    if plan.references is None:
        return batch
    return dataclasses.replace(batch, reference=load(plan.references))


class ResumableLoader:
    """Iterates the batches of one epoch after another and knows where it is.

    ``epoch`` and ``num_done`` (batches already given in it, each of ``echo`` times counted) are the
    whole state; set them with ``resume`` and the next iteration gives exactly what an uninterrupted
    run would have given.
    Not a torch DataLoader, so that Lightning leaves its order over ranks alone.
    """

    def __init__(
        self,
        plan_of_epoch: Callable[[int], Sequence[BatchPlan]],
        load: Callable[[BatchPlan], Batch],
        *,
        num_workers: int,
        pin_memory: bool = False,
        ahead: int = 0,
        echo: int = 1,
    ):
        self.epoch = 0
        self.num_done = 0
        self._plan_of_epoch = plan_of_epoch
        self._load = load
        self._num_workers = num_workers
        self._pin_memory = pin_memory
        self._ahead, self._echo = ahead, echo
        self._in_progress = False
        self._plan: tuple[int, Sequence[BatchPlan]] | None = None

    def __len__(self) -> int:
        """Batches of a whole epoch, wherever in it the loader stands."""
        return self._echo * len(self._planned())

    def resume(self, epoch: int, num_done: int) -> None:
        """Continue with batch ``num_done`` of ``epoch``; after its last, with the next epoch."""
        self.epoch, self.num_done = epoch, num_done
        if num_done >= len(self):
            self.epoch, self.num_done = epoch + 1, 0
        self._in_progress = False

    def __iter__(self) -> Iterator[Batch]:
        if self._in_progress:  # begun before: a new iteration is a new epoch, finished or not
            self.epoch, self.num_done = self.epoch + 1, 0
        self._in_progress = True
        batches = PlannedBatches(self._planned(), self._load)
        first, given = divmod(self.num_done, self._echo)
        loader = DataLoader(
            batches,
            batch_size=None,
            sampler=range(first, len(batches)),
            num_workers=self._num_workers,
            pin_memory=self._pin_memory,
        )
        for batch in ahead(loader, self._ahead) if self._ahead else loader:
            for _ in range(self._echo - given):
                self.num_done += 1
                yield batch
            given = 0

    def _planned(self) -> Sequence[BatchPlan]:
        if self._plan is None or self._plan[0] != self.epoch:
            self._plan = (self.epoch, self._plan_of_epoch(self.epoch))
        return self._plan[1]


def ahead(batches: Iterable[Batch], num: int) -> Iterator[Batch]:
    """The same batches, of which a thread makes ``num`` before they are asked for."""
    source = iter(batches)
    with ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, source, None) for _ in range(num))
        while (batch := pending.popleft().result()) is not None:
            pending.append(pool.submit(next, source, None))
            yield batch


def fit_sample(sample: Sample, bucket: Bucket, rng: np.random.Generator | None) -> Sample:
    """Cut a clip to its bucket's length, at a drawn start, and reduce it to the bucket's size.
    Without ``rng`` it is cut at its beginning.

    Latents are causal, so a clip that has them is cut at its beginning only. Its faces all stay:
    they show the same person wherever in the clip they are from; stills go with their frames, whose
    sound and motion they need.
    """
    extra = sample.meta.num_frames - bucket.num_frames
    if extra == 0 and (sample.meta.height, sample.meta.width) == (bucket.height, bucket.width):
        return sample
    start = 0
    if extra and sample.latents is None and rng is not None:
        start = TEMPORAL_FACTOR * int(rng.integers(extra // TEMPORAL_FACTOR + 1))
    frames = slice(start, start + bucket.num_frames)
    sound = slice(start * SAMPLES_PER_FRAME, frames.stop * SAMPLES_PER_FRAME)
    size = {"height": bucket.height, "width": bucket.width}
    video, latents, low = sample.video, sample.latents, sample.low
    stills, still_frames = sample.stills, sample.still_frames
    if stills is not None and still_frames is not None:
        inside = still_frames < bucket.num_frames
        stills, still_frames = stills[inside], still_frames[inside]
    return dataclasses.replace(
        sample,
        meta=dataclasses.replace(sample.meta, num_frames=bucket.num_frames, **size),
        audio=sample.audio[sound],
        heard=None if sample.heard is None else sample.heard[sound],
        motion=sample.motion[frames],
        face_box=sample.face_box[frames],
        mouth_box=sample.mouth_box[frames],
        landmarks=sample.landmarks[frames],
        valid=sample.valid[frames],
        phonemes=sample.phonemes[frames],
        video=None if video is None else _resized(video[frames], bucket),
        latents=None if latents is None else latents[: num_latents(bucket.num_frames)],
        low=None if low is None else low[: num_latents(bucket.num_frames)],
        stills=stills,
        still_frames=still_frames,
    )


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples of one bucket to a Batch: video in [-1, 1], audio in ±1, latents in fp32.

    Faces and stills are filled up with invalid ones to the most that a sample has. Who listens to
    nobody hears silence, if another sample listens to somebody.
    """
    with_video = all(sample.video is not None for sample in samples)
    with_latents = all(sample.latents is not None for sample in samples)
    with_low = all(sample.low is not None for sample in samples)
    with_landmarks = all(sample.landmarks.shape[1] == NUM_LANDMARKS for sample in samples)

    def stack(name: str) -> Tensor:
        return torch.stack([getattr(sample, name) for sample in samples])

    faces, faces_valid = _padded(samples, "faces")
    stills, stills_valid = _padded(samples, "stills")
    still_frames, _ = _padded(samples, "still_frames")
    text_states, _ = _padded(samples, "text_states")
    metas = [sample.meta for sample in samples]
    return Batch(
        video=stack("video").to(torch.float32) / 127.5 - 1 if with_video else None,
        audio=to_float(stack("audio")),
        text=tuple(sample.meta.text for sample in samples),
        motion=stack("motion"),
        face_box=stack("face_box"),
        mouth_box=stack("mouth_box"),
        valid=stack("valid"),
        key=tuple(sample.key for sample in samples),
        person=tuple(sample.meta.person for sample in samples),
        scene=tuple(sample.meta.scene for sample in samples),
        latents=stack("latents").to(torch.float32) if with_latents else None,
        faces=None if faces is None else faces.to(torch.float32),
        faces_valid=faces_valid,
        stills=None if stills is None else stills.to(torch.float32),
        stills_valid=stills_valid,
        still_frames=still_frames,
        motion_known=_known([meta.motion_known for meta in metas]),
        habits_known=_known([meta.habits_known for meta in metas]),
        landmarks=stack("landmarks") if with_landmarks else None,
        low=stack("low").to(torch.float32) if with_low else None,
        low_factor=_low_factor(samples) if with_low else None,
        text_states=text_states,
        heard=_heard(samples),
    )


def _heard(samples: Sequence[Sample]) -> Float[Tensor, "b s"] | None:
    if all(sample.heard is None for sample in samples):
        return None
    sounds = [torch.zeros_like(x.audio) if x.heard is None else x.heard for x in samples]
    return to_float(torch.stack(sounds))


def _known(names: Sequence[Collection[str]]) -> Bool[Tensor, "b m"] | None:
    """Which components each sample's names are; None: all."""
    known = torch.cat([known_mask(row) for row in names])
    return None if known.all() else known


def _padded(samples: Sequence[Sample], name: str) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """What each sample has a number of, "b k …", and which of them there are; nothing unless every
    sample has it."""
    rows = [row for sample in samples if (row := getattr(sample, name)) is not None]
    if len(rows) < len(samples):
        return None, None
    counts = torch.tensor([len(row) for row in rows])
    valid = torch.arange(int(counts.max())) < counts[:, None]
    return pad_sequence(rows, batch_first=True), valid


def _resized(video: Tensor, bucket: Bucket) -> Tensor:
    size = (bucket.height, bucket.width)
    if tuple(video.shape[2:]) == size:
        return video
    reduced = functional.interpolate(video.float(), size=size, mode="bilinear", antialias=True)
    return reduced.round().clamp(0, 255).to(torch.uint8)


def _low_factor(samples: Sequence[Sample]) -> float | None:
    """That of all samples. ValueError where they differ."""
    factors = {sample.meta.low_factor for sample in samples}
    if len(factors) > 1:
        raise ValueError(f"clips of one batch were made low by several factors: {factors}")
    return factors.pop()
