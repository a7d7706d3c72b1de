"""Close-ups of the face beside the latents of clips, as the reference stream reads them.

A clip gives ``NUM_STORED`` pictures, evenly spread over its valid frames: cut out of its video at
the stored resolution, or, for clips of the world, drawn again at a higher one (world/close_up.py).
Each is resized to the clip's own size and encoded alone by the VAE that made the latents.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from jaxtyping import Float16, Int, UInt8
from torch import Tensor

from avatar_v.critics.face_track import crop, face_windows, spread_frames
from avatar_v.device import check_threads, chosen_device
from avatar_v.models.vae import VideoVAE
from avatar_v.shards.loader import read_folder, read_members
from avatar_v.shards.schema import FACES, Sample, decode_faces, decode_sample, encode_faces
from avatar_v.shards.writer import (
    INDEX_SUFFIX,
    ClipEntry,
    Failure,
    RawClip,
    ShardIndex,
    read_index,
    write_shard,
)
from avatar_v.world.close_up import close_ups

NUM_STORED = 4
WORLD = "avatar_v.world"


def add_faces(
    folder: str | Path,
    vae_path: str | Path,
    *,
    num_threads: int | None = None,
    device: str = "cpu",
    on_clip: Callable[[int, int], None] = lambda num_done, num_clips: None,
) -> tuple[int, int]:
    """Add faces to every shard of ``folder`` that has none yet, in place; all other members stay
    byte for byte. Returns (clips, those that show no face).

    Each shard is written beside the old one and then moved, so an interrupted run goes on where it
    stopped. ValueError if latents are missing or made by another VAE, or if a clip has neither
    video nor a recipe of the world; the shards before it are done.
    """
    check_threads(num_threads)
    kind = chosen_device(device)
    vae = VideoVAE.from_pretrained(vae_path).to(kind).eval()
    vae_hash, clips = vae.hash(), read_folder(folder)
    for clip in clips:
        where = f"{clip.shard}, clip {clip.key}"
        if not clip.has_latents or clip.vae_hash != vae_hash:
            made = f"latents of VAE {clip.vae_hash}" if clip.has_latents else "no latents"
            raise ValueError(f"{where}: {made}; faces go beside latents of VAE {vae_hash}")
    if num_threads:
        torch.set_num_threads(num_threads)
    num_done, num_empty = 0, 0
    for path in sorted(Path(folder).rglob(f"*{INDEX_SUFFIX}")):
        index = read_index(path)
        if not all(clip.has_faces for clip in index.clips):
            done = num_done

            def heard(num: int, done: int = done) -> None:
                on_clip(done + num, len(clips))

            index = write_shard(index.shard, _with_faces(index, vae, kind, heard))
        num_done += len(index.clips)
        num_empty += sum(_is_empty(clip) for clip in index.clips)
        on_clip(num_done, len(clips))
    return len(clips), num_empty


def face_pictures(sample: Sample) -> tuple[UInt8[Tensor, "k 3 h w"], Int[Tensor, " k"]]:
    """Close-ups of a clip at its own size, and the frames they show.

    ValueError for a clip that is not square, or has neither video nor a recipe of the world.
    """
    meta = sample.meta
    if meta.height != meta.width:
        raise ValueError(f"{sample.key}: close-ups are square, the clip {meta.height}x{meta.width}")
    frames = spread_frames(sample.valid, NUM_STORED)
    if meta.source == WORLD:
        names = (meta.person, meta.scene, meta.sentence)
        person, scene, speech = (int(name.removeprefix("world-")) for name in names)
        return close_ups(person, scene, speech, sample.motion[frames], size=meta.height), frames
    if sample.video is None:
        raise ValueError(f"{sample.key}: no video to take close-ups of the face from")
    if len(frames) == 0:
        return sample.video[:0], frames
    windows = face_windows(sample.face_box[frames], meta.height, meta.width)
    return crop(sample.video[frames], windows, meta.height), frames


@torch.inference_mode()
def encode_pictures(
    vae: VideoVAE, pictures: UInt8[Tensor, "k 3 h w"], device: torch.device
) -> Float16[Tensor, "k c lh lw"]:
    """The one latent frame of each picture."""
    if len(pictures) == 0:
        height, width = (side // vae.spatial_factor for side in pictures.shape[2:])
        return torch.zeros(0, vae.latent_channels, height, width, dtype=torch.float16)
    video = pictures[:, None].to(device, torch.float32) / 127.5 - 1
    return vae.encode(video)[:, 0].to(torch.float16).cpu()


def faces_member(vae: VideoVAE, sample: Sample, device: torch.device) -> bytes:
    """The faces of a clip as a member of its shard."""
    pictures, frames = face_pictures(sample)
    return encode_faces(encode_pictures(vae, pictures, device), frames)


def _with_faces(
    index: ShardIndex, vae: VideoVAE, device: torch.device, on_clip: Callable[[int], None]
) -> Iterator[RawClip | Failure]:
    yield from index.failures
    for number, clip in enumerate(index.clips, start=1):
        members = read_members(clip, [name for name in clip.members if name != FACES])
        sample = decode_sample(clip.key, members, where=clip.shard, decode_video=clip.has_video)
        try:
            faces = faces_member(vae, sample, device)
        except ValueError as error:
            raise ValueError(f"{clip.shard}, clip {error}") from error
        yield RawClip(clip.key, {**members, FACES: faces})
        on_clip(number)


def _is_empty(clip: ClipEntry) -> bool:
    """Whether no frame of the clip shows a face."""
    faces, _ = decode_faces(read_members(clip, [FACES])[FACES], f"{clip.shard}, clip {clip.key}")
    return len(faces) == 0
