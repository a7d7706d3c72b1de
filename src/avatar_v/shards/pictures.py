"""Single pictures beside the latents of clips, for the reference stream.

Face crops (`avatar-v shards faces`) are the close-ups that a shard holds, or are cut out of its
video. Reference frames (`avatar-v shards stills`) are whole frames. A clip gives a few of either,
evenly spread over its valid frames, each of the clip's own size and encoded alone by the VAE that
made the latents.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float16, Int, UInt8
from torch import Tensor

from avatar_v.base.device import check_threads, chosen_device
from avatar_v.faces.face_track import crop, face_windows, spread_frames
from avatar_v.models.reference import NUM_STILLS
from avatar_v.models.vae import VideoVAE
from avatar_v.shards.loader import read_folder, read_members
from avatar_v.shards.schema import (
    FACES,
    NUM_CLOSE_UPS,
    STILLS,
    Sample,
    decode_pictures,
    decode_sample,
    encode_pictures,
)
from avatar_v.shards.store import is_url
from avatar_v.shards.writer import (
    INDEX_SUFFIX,
    ClipEntry,
    Failure,
    RawClip,
    ShardIndex,
    read_index,
    write_shard,
)

Pictures = UInt8[Tensor, "k 3 h w"]


@dataclass(frozen=True)
class Kind:
    """A kind of picture, and the member of a shard that holds it."""

    member: str
    select: Callable[[Sample], tuple[Pictures, Int[Tensor, " k"]]]  # pictures, and their frames


def add_pictures(
    kind: Kind,
    folder: str | Path,
    vae_path: str | Path,
    *,
    num_threads: int | None = None,
    device: str = "cpu",
    on_clip: Callable[[int, int], None] = lambda num_done, num_clips: None,
) -> tuple[int, int]:
    """Add pictures to every shard of ``folder`` that has none yet, in place; all other members stay
    byte for byte. Returns (clips, those that show no face).

    Each shard is written beside the old one and then moved, so an interrupted run goes on where it
    stopped. ValueError if latents are missing or made by another VAE, or if a clip has no video;
    the shards before it are done.
    """
    if is_url(folder):
        raise ValueError(f"{folder}: shards are changed in place, in a local folder")
    check_threads(num_threads)
    on = chosen_device(device)
    vae = VideoVAE.from_pretrained(vae_path).to(on).eval()
    vae_hash, clips = vae.hash(), read_folder(folder)
    for clip in clips:
        if not clip.has_latents or clip.vae_hash != vae_hash:
            made = f"latents of VAE {clip.vae_hash}" if clip.has_latents else "no latents"
            name = f"{clip.shard}, clip {clip.key}"
            raise ValueError(f"{name}: {made}; pictures go beside latents of VAE {vae_hash}")
    if num_threads:
        torch.set_num_threads(num_threads)
    num_done, num_empty = 0, 0
    for path in sorted(Path(folder).rglob(f"*{INDEX_SUFFIX}")):
        index = read_index(path)
        if not all(kind.member in clip.members for clip in index.clips):
            done = num_done

            def heard(num: int, done: int = done) -> None:
                on_clip(done + num, len(clips))

            index = write_shard(index.shard, _with_pictures(kind, index, vae, on, heard))
        num_done += len(index.clips)
        num_empty += sum(_is_empty(kind, clip) for clip in index.clips)
        on_clip(num_done, len(clips))
    return len(clips), num_empty


def pictures_member(kind: Kind, vae: VideoVAE, sample: Sample, device: torch.device) -> bytes:
    """The pictures of a clip as a member of its shard."""
    pictures, frames = kind.select(sample)
    return encode_pictures(encode_stills(vae, pictures, device), frames)


@torch.inference_mode()
def encode_stills(
    vae: VideoVAE, pictures: Pictures, device: torch.device
) -> Float16[Tensor, "k c lh lw"]:
    """The one latent frame of each picture."""
    if len(pictures) == 0:
        height, width = (side // vae.spatial_factor for side in pictures.shape[2:])
        return torch.zeros(0, vae.latent_channels, height, width, dtype=torch.float16)
    video = pictures[:, None].to(device, torch.float32) / 127.5 - 1
    return vae.encode(video)[:, 0].to(torch.float16).cpu()


def face_crops(sample: Sample) -> tuple[Pictures, Int[Tensor, " k"]]:
    """Close-ups of the face in the size of the clip, and the frames that they show.

    ValueError for a clip without video.
    """
    meta = sample.meta
    if sample.close_ups is not None and sample.close_up_frames is not None:
        return sample.close_ups, sample.close_up_frames
    video, frames = _video(sample), spread_frames(sample.valid, NUM_CLOSE_UPS)
    if len(frames) == 0:
        return video[:0], frames
    size = meta.height, meta.width
    windows = face_windows(sample.face_box[frames], *size, meta.width / meta.height)
    return crop(video[frames], windows, size), frames


def ref_frames(sample: Sample) -> tuple[Pictures, Int[Tensor, " k"]]:
    """Whole frames of a clip, and their numbers. ValueError for a clip without video."""
    frames = spread_frames(sample.valid, NUM_STILLS)
    return _video(sample)[frames], frames


def _video(sample: Sample) -> Pictures:
    if sample.video is None:
        raise ValueError(f"{sample.key}: no video to take pictures from")
    return sample.video


FACE_CROPS = Kind(FACES, face_crops)
REF_FRAMES = Kind(STILLS, ref_frames)


def _with_pictures(
    kind: Kind,
    index: ShardIndex,
    vae: VideoVAE,
    device: torch.device,
    on_clip: Callable[[int], None],
) -> Iterator[RawClip | Failure]:
    yield from index.failures
    for number, clip in enumerate(index.clips, start=1):
        members = read_members(clip, [name for name in clip.members if name != kind.member])
        sample = decode_sample(clip.key, members, where=clip.shard, decode_video=clip.has_video)
        try:
            pictures = pictures_member(kind, vae, sample, device)
        except ValueError as error:
            raise ValueError(f"{clip.shard}, clip {error}") from error
        yield RawClip(clip.key, {**members, kind.member: pictures})
        on_clip(number)


def _is_empty(kind: Kind, clip: ClipEntry) -> bool:
    """Whether no frame of the clip shows a face."""
    data = read_members(clip, [kind.member])[kind.member]
    latents, _ = decode_pictures(data, f"{clip.shard}, clip {clip.key}.{kind.member}")
    return len(latents) == 0
