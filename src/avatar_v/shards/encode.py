"""Add normalised VAE latents to shards, so that training need not run the VAE's encoder, and
encodings of their captions, so that it need not load the text encoder.

Each shard gives one of the same name; members are copied byte for byte, `latents.npy` (fp16, the
whole clip) is added, on request `faces.npz` and `stills.npz` (pictures.py), `low.npy` and
`text.npy`, and Meta says by which encoders.
Finished shards of the same clips are kept when a run is repeated.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.device import check_threads, chosen_device
from avatar_v.models.refiner import FACTOR, enlarge, reduce
from avatar_v.models.text import ByteTextEncoder, UMT5TextEncoder, text_hash, without_padding
from avatar_v.models.vae import VideoVAE
from avatar_v.shards.arrays import encode_array
from avatar_v.shards.folder import name_below, read_indexes
from avatar_v.shards.loader import read_clip, read_members
from avatar_v.shards.pictures import FACE_CROPS, REF_FRAMES, pictures_member
from avatar_v.shards.schema import (
    CLOSE_UPS,
    FACE,
    FACES,
    LATENTS,
    LOW,
    META,
    MOTION,
    RAW_VIDEO,
    STILLS,
    TEXT,
    VIDEO,
    encode_meta,
)
from avatar_v.shards.store import is_url
from avatar_v.shards.writer import (
    INDEX_SUFFIX,
    ClipEntry,
    Failure,
    RawClip,
    ShardIndex,
    index_path,
    read_index,
    write_shard,
    write_text_atomically,
)
from avatar_v.weights.weights import load_text

SETTINGS_FILE = "encode.json"
PIECE_FRAMES = 40


def encode_folder(
    folder: str | Path,
    out: str | Path,
    vae_path: str | Path,
    *,
    drop_video: bool = False,
    faces: bool = False,
    stills: bool = False,
    low: float | None = None,
    text: str | Path | None = None,
    bf16: bool = False,
    batch_size: int = 8,
    num_threads: int | None = None,
    device: str = "cpu",
    on_clip: Callable[[int, int], None] = lambda num_done, num_clips: None,
) -> tuple[int, str]:
    """Write every shard of ``folder`` with latents to ``out``; returns (clips, the VAE's hash).

    ``folder`` may be an object store's. ``low``: also latents of the clip made smaller by this
    factor and enlarged again, for the refiner. ``text``: weights whose text encoder encodes the
    captions, too. ``bf16``: in autocast, faster where the hardware has it and a little less exact.
    ValueError if ``out`` is ``folder``, holds shards of other encoders, choices or clips, a clip
    has no video or sides that are no multiples of that, its caption is too long, or what is encoded
    does not fit in fp16.
    """
    out = Path(out)
    if not is_url(folder) and out.resolve() == Path(folder).resolve():
        raise ValueError(f"{out}: the shards with latents go to another folder than their source")
    if batch_size < 1:
        raise ValueError(f"batch size is at least 1, got {batch_size}")
    if low is not None:
        checks.number("--low", low, above=1, most=8)
    check_threads(num_threads)
    kind = chosen_device(device)
    indexes = list(read_indexes(folder))
    clips = [clip for index in indexes for clip in index.clips]
    for clip in clips:
        if not clip.has_video:
            raise ValueError(f"{clip.shard}, clip {clip.key}: no video to encode")
    vae = VideoVAE.from_pretrained(vae_path).to(kind).eval()
    step = (low or 1) * vae.spatial_factor
    for clip in clips if low is not None else ():
        if clip.height % step or clip.width % step:
            size = f"{clip.height} x {clip.width}"
            raise ValueError(f"{clip.shard}, clip {clip.key}: {size} is no multiple of {step:g}")
    vae_hash = vae.hash()
    hashes, encoder = {"vae_hash": vae_hash}, None
    if text is not None:
        encoder = load_text(text).to(kind).eval()
        hashes["text_hash"] = text_hash(encoder)
    choices = {
        "faces": faces,
        "stills": stills,
        "low": low if low != FACTOR else True,
        "bf16": bf16,
    }
    asked = {**hashes, "drop_video": drop_video}
    _claim(out, {**asked, **{k: v for k, v in choices.items() if v}})
    _check_finished(out, {out / name_below(folder, one.shard): one for one in indexes})
    if num_threads:
        torch.set_num_threads(num_threads)
    num_done = 0
    for index in indexes:
        target = out / name_below(folder, index.shard)
        if not index_path(target).exists():
            writer = _Encoder(
                vae=vae,
                hashes=hashes,
                text=encoder,
                drop_video=drop_video,
                faces=faces,
                stills=stills,
                low=low,
                bf16=bf16,
                batch_size=batch_size,
                device=kind,
            )
            done = num_done
            write_shard(target, writer.items(index, lambda n, d=done: on_clip(d + n, len(clips))))
        num_done += len(index.clips)
        on_clip(num_done, len(clips))
    return len(clips), vae_hash


@dataclasses.dataclass(frozen=True)
class _Encoder:
    vae: VideoVAE
    hashes: dict[str, str]  # of the encoders, by their names in Meta
    text: ByteTextEncoder | UMT5TextEncoder | None
    drop_video: bool
    faces: bool
    stills: bool
    low: float | None
    bf16: bool
    batch_size: int
    device: torch.device

    def items(
        self, index: ShardIndex, on_clip: Callable[[int], None]
    ) -> Iterator[RawClip | Failure]:
        yield from index.failures
        num_done = 0
        for group in _batches(index.clips, self.batch_size):
            samples = [read_clip(clip, use_latents=False) for clip in group]
            video = torch.stack([sample.video for sample in samples if sample.video is not None])
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                latents = self._latents(video)
                lows = (
                    [None] * len(group) if self.low is None else self._low_latents(video, self.low)
                )
            for clip, sample, own, low in zip(group, samples, latents, lows, strict=True):
                if not all(torch.isfinite(x).all() for x in (own, low) if x is not None):
                    raise ValueError(f"{clip.shard}, clip {clip.key}: its latents overflow fp16")
                meta = dataclasses.replace(sample.meta, low_factor=self.low, **self.hashes)
                left_out = {LATENTS, FACES, STILLS, LOW, META} | (
                    {VIDEO, RAW_VIDEO, CLOSE_UPS} if self.drop_video else set()
                )
                members = read_members(clip, [m for m in clip.members if m not in left_out])
                members |= {META: encode_meta(meta), LATENTS: encode_array(own.numpy())}
                if self.faces:
                    members[FACES] = pictures_member(FACE_CROPS, self.vae, sample, self.device)
                if self.stills:
                    members[STILLS] = pictures_member(REF_FRAMES, self.vae, sample, self.device)
                if self.text is not None:
                    members[TEXT] = encode_array(self._caption(self.text, clip, meta.text).numpy())
                if low is not None:
                    members[LOW] = encode_array(low.numpy())
                yield RawClip(clip.key, members)
            num_done += len(group)
            on_clip(num_done)

    @torch.inference_mode()
    def _caption(
        self, encoder: ByteTextEncoder | UMT5TextEncoder, clip: ClipEntry, text: str
    ) -> Tensor:
        """Alone, so that it does not depend on the captions of other clips."""
        where = f"{clip.shard}, clip {clip.key}"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            try:
                (states,) = encoder([text])
            except ValueError as error:
                raise ValueError(f"{where}: its caption cannot be encoded ({error})") from error
        states = without_padding(states).to(torch.float16).cpu()
        if not torch.isfinite(states).all():
            raise ValueError(f"{where}: the encoding of its caption overflows fp16")
        return states

    @torch.inference_mode()
    def _latents(self, video: Tensor) -> Tensor:
        """In pieces: the features of long clips as a whole would not fit in any cache."""
        encoder = self.vae.stream_encoder()
        parts = [
            encoder.push(piece.to(self.device, torch.float32) / 127.5 - 1)
            for piece in video.split(PIECE_FRAMES, dim=1)
        ]
        return torch.cat(parts, dim=1).to(torch.float16).cpu()

    @torch.inference_mode()
    def _low_latents(self, video: Tensor, factor: float) -> Tensor:
        """As models.refiner.low_latents, in pieces."""
        small, decoder, large = (
            self.vae.stream_encoder(), self.vae.stream_decoder(), self.vae.stream_encoder()
        )  # fmt: skip
        parts = []
        for piece in video.split(PIECE_FRAMES, dim=1):
            latents = small.push(reduce(piece.to(self.device, torch.float32) / 127.5 - 1, factor))
            if latents.shape[1]:
                parts.append(large.push(enlarge(decoder.push(latents), factor)))
        return torch.cat(parts, dim=1).to(torch.float16).cpu()


def _batches(clips: tuple[ClipEntry, ...], batch_size: int) -> Iterator[list[ClipEntry]]:
    """Neighbours of equal size and length; the order of the shard is kept."""
    group: list[ClipEntry] = []
    for clip in clips:
        same = group and _shape(group[0]) == _shape(clip)
        if group and (not same or len(group) == batch_size):
            yield group
            group = []
        group.append(clip)
    if group:
        yield group


def _shape(clip: ClipEntry) -> tuple[int, int, int]:
    return clip.num_frames, clip.height, clip.width


def _check_finished(out: Path, sources: Mapping[Path, ShardIndex]) -> None:
    """ValueError for a shard in ``out`` that is of other clips than its source, or has none.
    ``sources``: by the shards that are made of them."""
    for path in sorted(out.rglob(f"*{INDEX_SUFFIX}")):
        made = read_index(path)
        source = sources.get(Path(made.shard))
        if source is None or list(map(_told, made.clips)) != list(map(_told, source.clips)):
            what = f"not made of the clips of {source.shard}" if source else "made of other shards"
            raise ValueError(f"{made.shard} was {what}: choose an empty folder, or delete it")


def _told(clip: ClipEntry) -> tuple:
    """What a clip and the one with latents have in common."""
    members = [clip.members[name].crc32 for name in (FACE, MOTION) if name in clip.members]
    return clip.key, clip.person, clip.scene, clip.num_frames, *members


def _claim(out: Path, settings: dict) -> None:
    file, text = out / SETTINGS_FILE, json.dumps(settings, sort_keys=True)
    if file.exists() and file.read_text() != text:
        raise ValueError(f"{out} was made with other settings: {file.read_text()}, asked: {text}")
    if not file.exists() and out.exists() and any(out.rglob("*.tar")):
        raise ValueError(f"{out} already holds shards of another origin; choose an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomically(file, text)
