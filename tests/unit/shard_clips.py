"""Small clips for the tests of shards: every value says which clip and frame it belongs to."""

from pathlib import Path

import torch

from avatar_v.shards.schema import Meta, Sample
from avatar_v.shards.writer import write_shard

VAE_HASH = "0123456789abcdef"


def make_sample(
    number: int,
    *,
    num_frames: int = 5,
    size: int = 32,
    num_persons: int = 4,
    scene: str | None = None,
    vae_hash: str | None = VAE_HASH,
    num_faces: int | None = None,
    num_stills: int | None = None,
) -> Sample:
    """Clip ``number``: motion and audio hold the frame's index, latents the clip's number, faces
    and stills it and their own in tenths."""
    frame = torch.arange(num_frames)
    generator = torch.Generator().manual_seed(number)
    coarse = torch.randint(0, 256, (num_frames, 3, 2, 2), generator=generator).float()
    video = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    latents = torch.full(((num_frames + 3) // 4, 4, size // 8, size // 8), float(number))
    meta = Meta(
        person=f"person{number % num_persons}",
        scene=scene or f"scene{number}",
        sentence=f"sentence{number}",
        text=f"clip {number}",
        num_frames=num_frames,
        height=size,
        width=size,
        licence="CC0-1.0",
        consent="synthetic",
        source="test",
        vae_hash=vae_hash,
    )
    return Sample(
        key=f"clip{number:03d}",
        meta=meta,
        audio=(100 * frame).to(torch.int16).repeat_interleave(640),
        motion=frame[:, None].expand(-1, 16).float(),
        face_box=torch.rand(num_frames, 4, generator=generator),
        mouth_box=torch.rand(num_frames, 4, generator=generator),
        landmarks=torch.rand(num_frames, 6, 2, generator=generator),
        valid=frame != 1,
        phonemes=frame,
        video=video.round().to(torch.uint8),
        latents=latents.half() if vae_hash else None,
        faces=None if num_faces is None else _pictures(number, num_faces, size),
        face_frames=None if num_faces is None else torch.arange(num_faces, dtype=torch.int32),
        stills=None if num_stills is None else _pictures(number, num_stills, size),
        still_frames=None if num_stills is None else torch.arange(num_stills, dtype=torch.int32),
    )


def _pictures(number: int, num: int, size: int) -> torch.Tensor:
    value = number + 0.1 * torch.arange(num)
    return value[:, None, None, None].expand(-1, 4, size // 8, size // 8).half()


def write_clips(folder: Path, count: int, *, per_shard: int = 6, **options) -> Path:
    """``count`` clips in shards of ``per_shard``."""
    for start in range(0, count, per_shard):
        numbers = range(start, min(start + per_shard, count))
        samples = [make_sample(n, **options) for n in numbers]
        write_shard(folder / f"{start:03d}.tar", samples)
    return folder
