"""The video autoencoder: PSNR of whole clips of TEST persons and of their mouths, sharpness and
flicker beside the true ones', PSNR of real faces that it never saw (where videos or pictures of
them are given and dlib is installed), and the spread of the latents.
"""

import argparse
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.critics.quality import flicker, sharpness
from avatar_v.faces.face_track import face_crop, track_faces
from avatar_v.losses.flow import box_cover
from avatar_v.losses.reconstruction import psnr
from avatar_v.media.pixels import to_uint8
from avatar_v.media.reading import read_video
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.vae import latent_stats
from avatar_v.types import TEMPORAL_FACTOR
from avatar_v.weights.card import ASSETS
from avatar_v.world.clip import WorldClip
from avatar_v_eval.cases import add_case_options, cases_note, drawn_clips, rendered_video, signed
from avatar_v_eval.intervals import mean_in_range
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings, Reading, Readings, means
from avatar_v_eval.records import Number

DECIBEL = {"psnr_world": "dB", "psnr_mouth": "dB"}
MEASURES = {"psnr_world": "PSNR, world", "psnr_mouth": "PSNR inside the mouth box"}
SHARES = {
    "sharpness": "sharpness, share of the true video's",
    "flicker": "flicker, share of the true video's",
}

SignedVideo = Float[Tensor, "f 3 h w"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=48, frames=101)
    add = parser.add_argument
    add("--size", type=int, default=64, help="height and width of the clips in pixels")
    add("--vae", default=str(ASSETS / "small" / "vae"), help="folder of a VideoVAE")
    add("--real", nargs="+", default=[], help="videos or pictures of real faces")
    add("--real-frames", type=int, default=401, help="of each video, at most")


def measure(options: argparse.Namespace) -> Findings:
    size = options.size
    if size < 16 or size % 8:
        raise ValueError(f"--size is a multiple of 8 pixels (the VAE's factor), got {size}")
    vae = VideoVAE.from_pretrained(options.vae)
    real, left_out = _real_faces(options.real, options.real_frames, size)

    def clip(i: int) -> WorldClip:
        first, num = options.first + i, options.frames
        return drawn_clips(options.split, 1, first=first, num_frames=num, size=size)[0]

    clips = mapped(clip, options.persons, "drawing clips", options.workers)
    videos = [signed(rendered_video(clip)) for clip in clips]
    rows = mapped(lambda i: read(vae, clips[i]), len(clips), "world", options.workers)
    persons = f"{options.split} persons"
    numbers = means(Readings({"db": rows}), MEASURES, {"db": persons}, DECIBEL)
    numbers |= means(Readings({"share": rows}), SHARES, {"share": persons})
    numbers["psnr_world_db"] = numbers["psnr_world_db"].described(
        numbers["psnr_world_db"].label, unit="dB", target="≥ 30"
    )
    numbers |= latent_numbers(vae, videos)
    notes = [
        cases_note(options, f" at {size} px, one clip each"),
        "PSNR of a clip is from the error over all its frames; intervals are over persons",
    ]
    if real:
        numbers |= real_numbers(vae, real)
        notes.append("real faces, portraits: cut out as generate cuts them, never trained on")
        videos += real.values()
    return Findings(
        "Video autoencoder of the small preset",
        numbers,
        recipe="recipes/0_vae.yaml",
        weights={"vae": vae.hash()},
        notes=[*notes, *left_out],
        figures={"": draw(vae, videos)},
    )


def read(vae: VideoVAE, clip: WorldClip) -> Reading:
    """PSNR of the whole picture and of the mouth box, and shares of the true picture's looks."""
    video = signed(rendered_video(clip))
    rebuilt = _rebuilt(vae, video)
    assert clip.mouth_box is not None
    made, true = to_uint8(rebuilt), rendered_video(clip)
    return {
        "sharpness": float(sharpness(made).mean() / sharpness(true).mean()),
        "flicker": float(flicker(made).mean() / flicker(true).mean()),
        "psnr_world": float(psnr(rebuilt[None], video[None])),
        "psnr_mouth": _psnr_inside(rebuilt, video, clip.mouth_box),
    }


def real_numbers(vae: VideoVAE, faces: dict[str, SignedVideo]) -> dict[str, Number]:
    """PSNR of each real face, by its file's name, and the mean with the lowest and the highest:
    a few faces are no sample of people, so there is no interval. Pictures are portraits, taken or
    drawn, of one frame, whose latent holds nothing of time, so they are a line of their own."""
    numbers = {}
    for kind, key, is_kind in (
        ("real face", "psnr_real", lambda video: len(video) > 1),
        ("portrait", "psnr_portrait", lambda video: len(video) == 1),
    ):
        values = {
            name: float(psnr(_rebuilt(vae, video)[None], video[None]))
            for name, video in faces.items()
            if is_kind(video)
        }
        for name, value in values.items():
            number = Number(value, len(faces[name]))
            label = f"PSNR, {kind}, {name} (n: frames)"
            numbers[f"{key}_{name}_db"] = number.described(label, unit="dB", target="≥ 24")
        if values:
            mean = mean_in_range([*values.values()])
            label = f"PSNR, {kind}s, mean, lowest to highest (n: people)"
            numbers[f"{key}_db"] = mean.described(label, unit="dB")
    return numbers


def latent_numbers(vae: VideoVAE, videos: list[SignedVideo]) -> dict[str, Number]:
    """Standard deviation of the normalised latents: the smallest and the largest channel."""
    with torch.inference_mode():
        _, raw = latent_stats(vae, (video[None] for video in videos))
    std = torch.tensor(raw) / vae.latents_std.flatten()
    return {
        "latent_std_min": Number(float(std.min()), len(videos)).described("Latent std, smallest"),
        "latent_std_max": Number(float(std.max()), len(videos)).described("Latent std, largest"),
    }


def draw(vae: VideoVAE, videos: list[SignedVideo]) -> Figure:
    """A row for each of at most nine clips: three frames, original beside reconstruction."""
    rows = []
    for video in [*videos[:8], *videos[8:][-1:]]:
        both = torch.stack([video, _rebuilt(vae, video)], dim=1)
        rows.append(list(to_uint8(both[[0, len(video) // 2, -1]].flatten(0, 1))))
    return picture_grid(rows, column_labels=["true", "through the VAE"] * 3)


def _rebuilt(vae: VideoVAE, video: SignedVideo) -> SignedVideo:
    with torch.inference_mode():
        return vae.decode(vae.encode(video[None]))[0]


def _psnr_inside(
    rebuilt: SignedVideo,
    video: SignedVideo,
    box: Float[Tensor, "f 4"],
) -> float:
    weight = box_cover(box[None], *video.shape[-2:])[0]
    mean_square = (((rebuilt - video) / 2).square().mean(1, keepdim=True) * weight).sum()
    return float(-10 * (mean_square / weight.sum()).log10())


def _real_faces(
    paths: list[str], max_frames: int, size: int
) -> tuple[dict[str, SignedVideo], list[str]]:
    """By the name of its file, the face in each picture, or in the first ``max_frames`` of each
    video, cut out as `generate` cuts it; and a line for each in which none is found."""
    faces, left_out = {}, []
    for path in map(Path, paths):
        frames = read_video(path, max_frames=max_frames)
        frames = frames[: (len(frames) - 1) // TEMPORAL_FACTOR * TEMPORAL_FACTOR + 1]
        track = track_faces(frames)
        if track.found.any():
            faces[path.stem] = signed(face_crop(frames, track, size))
        else:
            left_out.append(f"no face is found in {path.name}, so it is not measured")
    return faces, left_out
