"""ShardData: folders of shards to Lightning, as batches of `avatar_v.types.Batch`.

Order, pairs and crops are a function of (seed, epoch, data rank); the position in the epoch is in
the checkpoint. A resumed run sees exactly the batches that the uninterrupted one would have seen.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from avatar_v.base import checks
from avatar_v.base.video_format import FrameRate, checked_rate
from avatar_v.motion.stats import MotionStats
from avatar_v.parallel.trainer import trainer_layout
from avatar_v.shards.buckets import (
    BatchPlan,
    Bucket,
    Partners,
    Positions,
    assign,
    natural_buckets,
    plan_epoch,
)
from avatar_v.shards.loader import (
    ClipReader,
    ResumableLoader,
    load_clips,
    read_folder,
    read_members,
)
from avatar_v.shards.motion_stats import stats_of_folder
from avatar_v.shards.schema import META, STILLS, TEXT, decode_meta
from avatar_v.shards.table import ClipTable
from avatar_v.shards.training_data import TrainingData
from avatar_v.types import Batch, num_latents

MAX_BATCH = 65_536
MAX_WORKERS = 256


@dataclass(frozen=True)
class ClipSet:
    """The clips of one folder, sorted into buckets, with the partners each may be paired with."""

    folder: str
    clips: ClipTable
    members: dict[Bucket, Positions]
    partners: dict[Bucket, Partners] | None
    load: Callable[[BatchPlan], Batch]

    @property
    def vae_hash(self) -> str | None:
        """Of the VAE that made the latents; None where there are none."""
        return self.clips[0].vae_hash


class ShardData(TrainingData):
    """Training and validation clips.

    Args:
        train: Folder of shards; subfolders are read too.
        validation: Another folder, always in the same order; None for no validation.
        batch_size: Clips a batch and rank.
        num_workers: Loader processes; 0 reads in the training process.
        decode_video: False leaves the video undecoded and takes the precomputed latents alone.
        pictures: False leaves latents out as well: batches of motion and sound alone.
        pairs: Give each clip a reference: another clip of the same person from another scene.
            Clips without one are left out, with a warning.
        same_scene_pairs: Let the reference come from the same scene too.
        buckets: Sizes and lengths to batch by; longer clips are cut, larger ones reduced. None:
            those that occur in the shards.
        seed: Of order, pairs and crops.
        cache: Keep decoded clips in memory (num_workers must be 0: workers share none).
        ahead: Training batches that a thread makes before they are asked for.
        echo: How often in a row a training batch is given, each time with other draws: for a GPU
            that computes faster than clips are read.
        vae_hash: The VAE that the latents must come from; None accepts any one VAE.
    """

    def __init__(
        self,
        train: str,
        batch_size: int,
        validation: str | None = None,
        num_workers: int = 0,
        decode_video: bool = True,
        pictures: bool = True,
        pairs: bool = False,
        same_scene_pairs: bool = False,
        buckets: list[Bucket] | None = None,
        seed: int = 0,
        cache: bool = False,
        vae_hash: str | None = None,
        ahead: int = 0,
        echo: int = 1,
    ):
        super().__init__()
        checks.count("batch_size", batch_size, most=MAX_BATCH)
        checks.count("num_workers", num_workers, least=0, most=MAX_WORKERS)
        checks.count("ahead", ahead, least=0, most=MAX_WORKERS)
        checks.count("echo", echo, most=MAX_WORKERS)
        checks.seed("seed", seed)
        if cache and num_workers:
            raise ValueError(
                f"cache keeps clips in this process: num_workers {num_workers}, expected 0"
            )
        if same_scene_pairs and not pairs:
            raise ValueError("same_scene_pairs changes nothing without pairs")
        self.train_folder = train
        self.validation_folder = validation
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.decode_video = decode_video and pictures
        self.pictures = pictures
        self.pairs = pairs
        self.same_scene_pairs = same_scene_pairs
        self.buckets = buckets
        self.seed = seed
        self.cache = cache
        self.vae_hash = vae_hash
        self.ahead, self.echo = ahead, echo
        self._sets: dict[str, ClipSet] = {}
        self._train_loader: ResumableLoader | None = None
        self._restored: dict[str, Any] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read the indexes; every error of the shards that needs no decoding is raised here."""
        for folder in (self.train_folder, self.validation_folder):
            if folder is not None:
                self.read_index(folder)

    def read_index(self, folder: str) -> ClipSet:
        """The clips of one folder, sorted; ValueError as ``setup``."""
        if folder not in self._sets:
            found = self._clip_set(folder)
            rates = {clip.frame_rate_hz for clip, _ in found.clips.kinds()}
            if len(rates) > 1:
                raise ValueError(
                    f"{folder}: its clips have {sorted(rates)} frames a second, not one"
                )
            self._sets[folder] = found
        return self._sets[folder]

    def train_dataloader(self) -> ResumableLoader:
        loader = self._loader(self.train_folder, shuffle=True)
        if self._restored is not None:
            self._restore(loader, self._restored)
            self._restored = None
        self._train_loader = loader
        return loader

    def val_dataloader(self) -> ResumableLoader | list:
        if self.validation_folder is None:
            return []
        return self._loader(self.validation_folder, shuffle=False)

    def clip_set(self, folder: str) -> ClipSet:
        """The clips of the training or validation folder, as sorted by ``setup``."""
        self.setup()
        return self._sets[folder]

    def require_vae(self, vae_hash: str) -> None:
        """ValueError, naming shard and clip, unless every latent comes from this VAE."""
        self.setup()
        for clip_set in self._sets.values():
            needed = self.pictures and not self.decode_video
            check_latents(clip_set.clips, vae_hash, required=needed)

    def require_stills(self) -> None:
        """ValueError, naming shard and clip, unless every clip has whole frames beside it."""
        self.setup()
        for clip_set in self._sets.values():
            for clip, _ in clip_set.clips.kinds():
                if STILLS not in clip.members:
                    raise ValueError(
                        f"{clip.shard}, clip {clip.key}: no stills, which personality.stills_share "
                        "needs; make them with `avatar-v shards encode --stills`"
                    )

    def require_captions(self, most_bytes: int) -> None:
        """ValueError, naming shard and clip, unless every caption has at most so many bytes. Only
        clips whose metadata are longer than that are read."""
        self.setup()
        for clip_set in self._sets.values():
            for clip in clip_set.clips:
                if clip.members[META].size <= most_bytes:
                    continue
                where = f"{clip.shard}, clip {clip.key}"
                meta = decode_meta(read_members(clip, (META,))[META], where)
                if len(meta.text.encode()) > most_bytes:
                    raise ValueError(
                        f"{where}: its caption has {len(meta.text.encode())} bytes, the text "
                        f"encoder takes {most_bytes}; shorten it, and import the clip again"
                    )

    def require_text(self, text_hash: str) -> None:
        """ValueError, naming shard and clip, unless every caption was encoded by this encoder."""
        self.setup()
        for clip_set in self._sets.values():
            for clip, _ in clip_set.clips.kinds():
                if TEXT in clip.members and clip.text_hash == text_hash:
                    continue
                made = f"encoded by {clip.text_hash}" if TEXT in clip.members else "not encoded"
                raise ValueError(
                    f"{clip.shard}, clip {clip.key}: its caption is {made}, models.stored_text "
                    f"expects encoder {text_hash}; run `avatar-v shards encode --text`"
                )

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Height and width of the largest pictures of the training clips; None without any."""
        if not self.pictures:
            return None
        buckets = self.read_index(self.train_folder).members
        size = max(((b.height, b.width) for b in buckets), key=lambda s: s[0] * s[1])
        return size if all(size) else None

    @property
    def frame_rate_hz(self) -> FrameRate:
        """Of the training clips."""
        return checked_rate(self.read_index(self.train_folder).clips[0].frame_rate_hz)

    def require_one_rate(self) -> None:
        """ValueError unless the validation clips have the rate of the training clips."""
        self.setup()
        rates = {f: s.clips[0].frame_rate_hz for f, s in self._sets.items()}
        if len(set(rates.values())) > 1:
            raise ValueError(f"clips of one rate of frames are trained on, got {rates}")

    def require_tokens(self, step: int) -> None:
        """ValueError, naming folder and size, unless pictures are of whole tokens of ``step``
        pixels."""
        self.setup()
        for folder, clip_set in self._sets.items():
            for bucket in clip_set.members:
                if bucket.height % step or bucket.width % step:
                    raise ValueError(
                        f"{folder}: pictures of {bucket.width} x {bucket.height} pixels are no "
                        f"whole tokens of {step}; draw, import or crop them (data.init_args."
                        "buckets) to multiples of that"
                    )

    def require_length(self, most_latents: int) -> None:
        """ValueError, naming the folder, unless every batch has clips of at least so many."""
        self.setup()
        for folder, clip_set in self._sets.items():
            shortest = min(num_latents(bucket.num_frames) for bucket in clip_set.members)
            if shortest < most_latents:
                raise ValueError(
                    f"a window of {most_latents} latents does not fit clips of {shortest} in "
                    f"{folder}: shorten window_latents, or leave short clips out with buckets"
                )

    @property
    def most_latents(self) -> int:
        """Of the longest training clips."""
        buckets = self.read_index(self.train_folder).members
        return max(num_latents(bucket.num_frames) for bucket in buckets)

    def motion_stats(self) -> MotionStats:
        return stats_of_folder(self.train_folder)

    def state_dict(self) -> dict[str, Any]:
        loader = self._train_loader
        if loader is None:
            return self._restored or {}
        return {"epoch": loader.epoch, "num_done": loader.num_done, **self._order_settings()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = dict(state_dict) or None
        if self._train_loader is not None and self._restored is not None:
            self._restore(self._train_loader, self._restored)

    def _restore(self, loader: ResumableLoader, state: dict[str, Any]) -> None:
        now = self._order_settings()
        then = {"echo": 1, **state}  # of checkpoints that do not say it
        changed = {k: (then[k], now[k]) for k in now if then[k] != now[k]}
        if changed:
            warnings.warn(
                f"the data changed since the checkpoint (then, now): {changed}; its order cannot "
                f"be continued, training goes on with the beginning of epoch {state['epoch'] + 1}",
                stacklevel=2,
            )
            loader.resume(state["epoch"] + 1, 0)
        else:
            loader.resume(state["epoch"], state["num_done"])

    def _order_settings(self) -> dict[str, Any]:
        clip_set = self.clip_set(self.train_folder)
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "echo": self.echo,
            "num_ranks": trainer_layout(self.trainer).num_data_ranks,
            "num_clips": sum(len(indices) for indices in clip_set.members.values()),
        }

    def _loader(self, folder: str, *, shuffle: bool) -> ResumableLoader:
        clip_set = self.clip_set(folder)
        layout = trainer_layout(self.trainer)

        def plan_of_epoch(epoch: int):
            return plan_epoch(
                clip_set.members,
                batch_size=self.batch_size,
                seed=self.seed,
                epoch=epoch if shuffle else 0,
                rank=layout.data_rank,
                num_ranks=layout.num_data_ranks,
                shuffle=shuffle,
                fill=shuffle or layout.num_data_ranks > 1,
                partners=clip_set.partners,
            )

        return ResumableLoader(
            plan_of_epoch,
            clip_set.load,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            ahead=self.ahead if shuffle else 0,
            echo=self.echo if shuffle else 1,
        )

    def _clip_set(self, folder: str) -> ClipSet:
        clips = read_folder(folder)
        use_latents = self._use_latents(folder, clips)
        members = sorted_clips(clips, self.buckets, uses_latents=use_latents)
        num_fitting = sum(map(len, members.values()))
        _report_left_out(folder, len(clips), num_fitting, f"fit none of the buckets {self.buckets}")
        partners = None
        if self.pairs:
            members, partners = self._paired(clips, members)
            num_paired = sum(map(len, members.values()))
            where = "" if self.same_scene_pairs else " in another scene"
            why = f"have no other clip of their person{where}"
            _report_left_out(folder, num_fitting, num_paired, why)
        reader = ClipReader(
            clips, decode_video=self.decode_video, use_latents=use_latents, cache=self.cache
        )
        return ClipSet(folder, clips, members, partners, partial(load_clips, read=reader))

    def _use_latents(self, folder: str, clips: ClipTable) -> bool:
        if not self.pictures:
            return False
        if not self.decode_video:
            check_latents(clips, self.vae_hash, required=True)
            return True
        kinds = [clip for clip, _ in clips.kinds()]
        without = next((clip for clip in kinds if not clip.has_video), None)
        if without is not None:
            raise ValueError(
                f"{without.shard}, clip {without.key}: no video (encoded with --drop-video); "
                "set decode_video to false to train on its latents"
            )
        check_latents(clips, self.vae_hash, required=False)
        return self.buckets is None and all(clip.has_latents for clip in kinds)

    def _paired(
        self, clips: ClipTable, members: dict[Bucket, Positions]
    ) -> tuple[dict[Bucket, Positions], dict[Bucket, Partners]]:
        found = {
            bucket: Partners(clips, positions, same_scene=self.same_scene_pairs)
            for bucket, positions in members.items()
        }
        found = {bucket: partners for bucket, partners in found.items() if len(partners.paired)}
        return {bucket: partners.paired for bucket, partners in found.items()}, found


def sorted_clips(
    clips: ClipTable, buckets: Sequence[Bucket] | None, *, uses_latents: bool
) -> dict[Bucket, Positions]:
    """The positions of the clips of each bucket, ascending; None: buckets as they occur."""
    kinds = clips.kinds()
    buckets = buckets or natural_buckets(clip for clip, _ in kinds)
    found: dict[Bucket, list[Positions]] = {}
    for clip, positions in kinds:
        bucket = assign(clip, buckets, uses_latents=uses_latents)
        if bucket is not None:
            found.setdefault(bucket, []).append(positions)
    return {bucket: np.sort(np.concatenate(parts)) for bucket, parts in found.items()}


def check_latents(clips: ClipTable, vae_hash: str | None, *, required: bool) -> None:
    """ValueError naming shard and clip where latents are missing or made by another VAE.

    Without ``vae_hash`` the first clip's decides, so that two VAEs are never mixed.
    """
    for clip, _ in clips.kinds():
        where = f"{clip.shard}, clip {clip.key}"
        if not clip.has_latents:
            if required:
                raise ValueError(f"{where}: no latents; make them with `avatar-v shards encode`")
            continue
        vae_hash = vae_hash or clip.vae_hash
        if clip.vae_hash != vae_hash:
            raise ValueError(
                f"{where}: its latents were made by VAE {clip.vae_hash}, expected {vae_hash}; "
                "run `avatar-v shards encode` again"
            )


def _report_left_out(folder: str, num_before: int, num_after: int, why: str) -> None:
    if num_after == 0:
        raise ValueError(f"{folder}: all {num_before} clips {why}")
    if num_after < num_before:
        warnings.warn(f"{folder}: {num_before - num_after} clips {why}, left out", stacklevel=3)
