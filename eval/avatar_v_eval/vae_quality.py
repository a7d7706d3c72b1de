"""What the video autoencoder loses: ``python -m avatar_v_eval.vae_quality``.

PSNR of whole clips of TEST persons and of their mouths, PSNR of a real face it never saw (where
the clip is given and dlib is installed), the spread of the latents, and on request frames per
second.
Writes ``eval/results/vae.json``; ``--picture`` also writes originals beside reconstructions.
"""

import argparse
import time
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from rich.progress import track
from torch import Tensor

from avatar_v.losses.flow import box_cover
from avatar_v.media import read_video
from avatar_v.models.vae import VideoVAE
from avatar_v.stages.vae import latent_stats, psnr
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.curves import ASSETS
from avatar_v_eval.records import Number, as_command

SIZE = 64


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the video autoencoder loses.")
    parser.add_argument("--vae", default=str(ASSETS / "vae"))
    parser.add_argument("--persons", type=int, default=48)
    parser.add_argument("--first", type=int, default=0, help="number of the first test person")
    parser.add_argument("--frames", type=int, default=101, help="per person, 4k + 1")
    parser.add_argument("--real", help="a video of a real face, e.g. talking_head.mp4")
    parser.add_argument("--real-frames", type=int, default=101, help="4k + 1")
    parser.add_argument("--speed", action="store_true", help="also frames per second: idle machine")
    parser.add_argument("--picture", help="PNG to write")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    options = parser.parse_args(arguments)
    vae = VideoVAE.from_pretrained(options.vae)
    clips = _clips(options.persons, options.frames, options.first)
    videos = [_signed(clip.video) for clip in clips]
    numbers = world_numbers(vae, clips) | latent_numbers(vae, videos)
    if options.speed:
        numbers |= speed_numbers(vae)
    notes = [
        f"{options.persons} TEST persons from number {options.first} on, one clip of "
        f"{options.frames} frames at {SIZE} px each",
        "PSNR of a clip is from the error over all its frames; intervals are over persons",
    ]
    if options.real is not None:
        real = _real_face(options.real, options.real_frames)
        numbers |= real_numbers(vae, real)
        notes.append(f"real face: {Path(options.real).name}, face-centred, measured only")
        videos.append(real)
    result = records.make_result(
        "vae",
        "Video autoencoder of the small preset",
        numbers,
        recipe="recipes/0_vae.yaml",
        weights={"vae": vae.hash()},
        notes=notes,
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:56s} {number.value:8.3f}  [{number.low}, {number.high}]")
    if options.picture is not None:
        _picture(vae, videos, options.picture)


def world_numbers(vae: VideoVAE, clips: list[WorldClip]) -> dict[str, Number]:
    """PSNR of the whole picture and of the mouth box, mean over persons."""
    whole, mouth = [], []
    for clip in track(clips, "world", transient=True):
        video = _signed(clip.video)
        rebuilt = _rebuilt(vae, video)
        whole.append(float(psnr(rebuilt[None], video[None])))
        assert clip.mouth_box is not None
        mouth.append(_psnr_inside(rebuilt, video, clip.mouth_box))
    return {
        "psnr_world_db": records.bootstrap_mean(torch.tensor(whole).numpy()).described(
            "PSNR, world, test persons", unit="dB", target="≥ 30"
        ),
        "psnr_world_mouth_db": records.bootstrap_mean(torch.tensor(mouth).numpy()).described(
            "PSNR inside the mouth box, test persons", unit="dB"
        ),
    }


def real_numbers(vae: VideoVAE, video: Float[Tensor, "f 3 h w"]) -> dict[str, Number]:
    """PSNR of one real clip: no interval, since one person is no sample of persons."""
    value = float(psnr(_rebuilt(vae, video)[None], video[None]))
    number = Number(value, len(video)).described(
        "PSNR, one real face never trained on (n: frames)", unit="dB", target="≥ 24"
    )
    return {"psnr_real_db": number}


def latent_numbers(vae: VideoVAE, videos: list[Float[Tensor, "f 3 h w"]]) -> dict[str, Number]:
    """Standard deviation of the normalised latents: the smallest and the largest channel."""
    with torch.inference_mode():
        _, raw = latent_stats(vae, (video[None] for video in videos))
    std = torch.tensor(raw) / vae.latents_std.flatten()
    return {
        "latent_std_min": Number(float(std.min()), len(videos)).described("Latent std, smallest"),
        "latent_std_max": Number(float(std.max()), len(videos)).described("Latent std, largest"),
    }


def speed_numbers(vae: VideoVAE, num_repeats: int = 5) -> dict[str, Number]:
    """Frames per second of one clip of 101 frames, encoded and decoded, in fp32."""
    video = torch.rand(1, 101, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rates: dict[str, list[float]] = {"encode": [], "decode": []}
    with torch.inference_mode():
        latents = vae.encode(video)
        for _ in range(num_repeats):
            start = time.perf_counter()
            vae.encode(video)
            middle = time.perf_counter()
            vae.decode(latents)
            rates["encode"].append(101 / (middle - start))
            rates["decode"].append(101 / (time.perf_counter() - middle))
    return {
        f"{name}_fps": records.median_of_repeats(values).described(
            f"Frames per second, {name}", unit="1/s"
        )
        for name, values in rates.items()
    }


def _clips(num: int, num_frames: int, first: int) -> list[WorldClip]:
    """One clip for each of ``num`` TEST persons, each in its own scene and sentence."""
    ids = zip(*(take("test", num, first) for take in (persons, scenes, sentences)), strict=True)
    return [
        make_clip(*triple, num_frames=num_frames, size=SIZE)
        for triple in track(list(ids), "rendering", transient=True)
    ]


def _signed(video: UInt8[Tensor, "f 3 h w"] | None) -> Float[Tensor, "f 3 h w"]:
    assert video is not None
    return video.float() / 127.5 - 1


def _rebuilt(vae: VideoVAE, video: Float[Tensor, "f 3 h w"]) -> Float[Tensor, "f 3 h w"]:
    with torch.inference_mode():
        return vae.decode(vae.encode(video[None]))[0]


def _psnr_inside(
    rebuilt: Float[Tensor, "f 3 h w"],
    video: Float[Tensor, "f 3 h w"],
    box: Float[Tensor, "f 4"],
) -> float:
    weight = box_cover(box[None], *video.shape[-2:])[0]
    mean_square = (((rebuilt - video) / 2).square().mean(1, keepdim=True) * weight).sum()
    return float(-10 * (mean_square / weight.sum()).log10())


def _real_face(path: str, num_frames: int) -> Float[Tensor, "f 3 h w"]:
    from avatar_v.critics.face_track import face_crop, track_faces

    frames = read_video(path, max_frames=num_frames)
    if len(frames) < num_frames:
        raise ValueError(f"{path} has {len(frames)} frames, expected at least {num_frames}")
    return _signed(face_crop(frames, track_faces(frames), SIZE))


def _picture(vae: VideoVAE, videos: list[Float[Tensor, "f 3 h w"]], path: str) -> None:
    """One row per clip: three frames, original beside reconstruction; at most nine clips."""
    rows = []
    for video in [*videos[:8], *videos[8:][-1:]]:
        rebuilt = _rebuilt(vae, video)
        columns = [part[i] for i in (0, len(video) // 2, -1) for part in (video, rebuilt)]
        rows.append(torch.cat(columns, dim=2))
    sheet = ((torch.cat(rows, dim=1) + 1) * 127.5).round().clamp(0, 255).byte()
    picture = Image.fromarray(sheet.permute(1, 2, 0).numpy())
    picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST).save(path)


if __name__ == "__main__":
    as_command(main)
