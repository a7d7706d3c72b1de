"""A real face, end to end, from one clip: imported, trained, generated and scored.

Imports the clip, trains on from the shipped weights by ``recipes/own_face_vae.yaml`` and
``own_face.yaml``, generates the person speaking ``SPEECH``, and scores the result: is it this
person (dlib's face embedding, against the clip itself and against other people), and does the mouth
move with the sound (dlib's landmarks against loudness; the real clip's own value stands beside it).
Needs the [faces] extra.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch.nn import functional as F

from avatar_v.faces.face_track import face_crop, track_faces
from avatar_v.media import reading
from avatar_v.models.base import hash_folder
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.sampling import pearson
from avatar_v.scoring.scorers.likeness import FaceDlibScorer
from avatar_v.scoring.scorers.motion import StyleLandmarksScorer
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_eval.cases import Video, loudness
from avatar_v_eval.intervals import fisher, mean_in_range, rate
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import AVATAR_V, AVATAR_V_DATA

SHOWN_SIZE = 384
"""Small pictures are enlarged to this before dlib sees them; its detector needs 80 pixels."""
MAX_LAG = 5
TIMES = "times.json"  # wall seconds of each command, in the work folder
INNER_LIPS, BROW_TO_CHIN = (62, 66), (27, 8)
"""Landmarks of the 68-point scheme."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("clip", help="a video of the person speaking")
    add("speech", help="the sound to speak: audio or video")
    add("--more-speech", nargs="*", default=[], help="spoken too, to measure lips")
    add("--others", nargs="*", default=[], help="videos or pictures of others")
    add("--work", type=Path, default=Path("runs/own_face"), help="folder for shards and weights")
    add("--tune", action="append", default=[], help="--tune=--OPTION=VALUE")
    add("--train", action="append", default=[], help="--train=--OPTION=VALUE")
    add("--frames", type=int, default=97, help="of a training clip, 4k + 1")
    add("--size", type=int, default=64)
    add("--score-only", action="store_true", help="WORK/out.mp4 exists; score it")


def measure(options: argparse.Namespace) -> Findings:
    work, size = options.work, options.size
    others = [shown(crop_head(reading.read_video(path), size), path) for path in options.others]
    video = crop_head(reading.read_video(options.clip), size)
    real = shown(video, options.clip)
    if not options.score_only:
        make_video(options, work)
    times = json.loads((work / TIMES).read_text(encoding="utf-8"))
    paths = [work / name for name in outputs(options)]
    made = [shown(reading.read_video(path), str(path)) for path in paths]
    numbers = identity_numbers(real, made[0], others) | mouth_numbers(real, made)
    numbers |= {
        f"time_{k}": Number(v, 1).described(f"time of {step_label(k)}", unit="s")
        for k, v in times.items()
    }
    speeches = ", ".join(Path(speech).name for speech in outputs(options).values())
    return Findings(
        f"A real face: {Path(options.clip).name} speaks {speeches}",
        numbers,
        recipe="recipes/own_face_vae.yaml, recipes/own_face.yaml",
        weights={"pipeline": hash_folder(work / "run" / "weights")},
        notes=[
            "distance of dlib's ResNet face embeddings, 2 frames a second; the same person is "
            "usually below 0.6",
            "the clip is the one that was trained on, as a user would do; the speech is new",
            f"every video is scored at {size} px, enlarged to {SHOWN_SIZE} for dlib",
            "mouth: r of the inner lips' distance with loudness, at the best lag within ±5 frames, "
            "over all speeches; n counts quarters of a second",
        ],
        figures={"": contact_sheet(video, reading.read_video(paths[0]))},
    )


def make_video(options: argparse.Namespace, work: Path) -> None:
    """The commands of a user; keeps the seconds each took. Stops where one fails."""
    work.mkdir(parents=True, exist_ok=True)
    clips = work / "clips"
    clips.mkdir(exist_ok=True)
    link = clips / Path(options.clip).name
    if not link.exists():
        link.symlink_to(Path(options.clip).resolve())
    video, tuned, latents, run = (str(work / x) for x in ("video", "tuned", "latents", "run"))
    vae = f"{tuned}/vae"

    def trained(recipe: str, data: str, folder: str) -> list[str]:
        places = ["--data.init_args.train", data, "--trainer.default_root_dir", folder]
        return ["run", f"recipes/{recipe}.yaml", *places, "--overwrite"]

    commands = {
        "import": ["import", str(clips), "--out", video, "--frames", str(options.frames)],
        "tune": [*trained("own_face_vae", video, tuned), *options.tune],
        "encode": ["shards", "encode", "--shards", video, "--out", latents, "--vae", vae],
        "train": [
            *trained("own_face", latents, run),
            *("--model.init_args.models.vae", vae),
            *options.train,
        ],
    }
    for name, speech in outputs(options).items():
        commands["generate" if name == "out.mp4" else name] = [
            *("generate", "--reference", options.clip, "--audio", speech),
            *("--weights", f"{run}/weights", "--out", str(work / name), "--overwrite"),
            "--no-watermark",
        ]
    times = {}
    for name, words in commands.items():
        command = AVATAR_V_DATA if name == "import" else AVATAR_V
        print("avatar-v-data" if name == "import" else "avatar-v", *words, flush=True)
        start_s = time.perf_counter()
        subprocess.run([*command, *words], check=True)
        times[name] = time.perf_counter() - start_s
        (work / TIMES).write_text(json.dumps(times) + "\n", encoding="utf-8")


def outputs(options: argparse.Namespace) -> dict[str, str]:
    """Which video says what."""
    more = {f"more_{i}.mp4": speech for i, speech in enumerate(options.more_speech)}
    return {"out.mp4": options.speech, **more}


def step_label(name: str) -> str:
    """A step of `make_video` in words."""
    words = {
        "import": "importing the clip",
        "tune": "training the VAE",
        "encode": "encoding the clip",
        "train": "training the network",
        "generate": "generating the first speech",
    }
    if name in words:
        return words[name]
    number = int(Path(name).stem.removeprefix("more_")) + 1
    return f"generating further speech {number}"


def crop_head(video: Video, size: int) -> Video:
    """The head as the importer crops it."""
    return face_crop(video, track_faces(video), size)


def shown(video: Video, path: str) -> Footage:
    """A video as dlib sees it. ValueError where no frame shows a face; a picture has no sound."""
    x = F.interpolate(video.float(), (SHOWN_SIZE, SHOWN_SIZE), mode="bicubic", align_corners=False)
    silence = torch.zeros(len(video) * SAMPLES_PER_FRAME)
    sound = reading.read_audio(path) if reading.probe(path).has_audio else silence
    footage = Footage.of(x.round().clamp(0, 255).byte(), sound, path)
    footage.track  # noqa: B018 - the error of a video without a face comes before any training
    return footage


def part(footage: Footage, frames: slice) -> Footage:
    """Some frames of a video, without their sound."""
    pictures = torch.cat([block for _, block in footage.blocks()])
    return Footage.of(pictures[frames], footage.audio, footage.name)


def identity_numbers(real: Footage, made: Footage, others: list[Footage]) -> dict[str, Number]:
    """Embedding distances: generated to real, real to itself, generated to other people."""
    face, half = FaceDlibScorer(), real.num_frames // 2
    clip = ScoredClip(made, real, next(iter(real.pictures.frames())))
    scores = face.score(clip)
    own = [value for _, value in scores.frames["face_dlib"]]
    halves = ScoredClip(part(real, slice(half, None)), part(real, slice(half)), clip.image)
    style = StyleLandmarksScorer().score(clip).values["style_landmarks"]
    numbers = {
        "face_found": Number(scores.values["face_dlib_found"], 1).described(
            "generated frames in which dlib finds a face"
        ),
        "face_own": mean_in_range(own).described(
            "distance of generated frames to the person, lowest to highest", target="< 0.6"
        ),
        "face_ceiling": Number(face.score(halves).values["face_dlib"], 1).described(
            "distance of the real clip's halves"
        ),
        "style": Number(style, 1).described("style distance to the real clip"),
    }
    if others:
        far = [
            face.score(ScoredClip(made, other, clip.image)).values["face_dlib"] for other in others
        ]
        numbers["face_others"] = mean_in_range(far).described(
            "distance to other people, lowest to highest"
        )
        nearer = sum(scores.values["face_dlib"] < other for other in far)
        numbers["face_nearest"] = rate(nearer, len(far)).described(
            "other people who are farther than the person"
        )
    return numbers


def mouth_numbers(real: Footage, made: list[Footage]) -> dict[str, Number]:
    """Mouths against loudness: generated, generated against the sound of the next video (or of the
    real clip, where there is one video), and real."""
    own, real_pair = [mouth_and_sound(each) for each in made], mouth_and_sound(real)
    louds = [loud for _, loud in own]
    others = [*louds[1:], louds[0]] if len(made) > 1 else [real_pair[1]]
    other = [(mouth, loud) for (mouth, _), loud in zip(own, others, strict=True)]
    movement = float(np.mean([mouth.std() for mouth, _ in own]) / real_pair[0].std())
    return {
        "mouth_made": _with_sound(own).described("generated mouth with its own sound, r"),
        "mouth_unrelated": _with_sound(other).described("generated mouth with another sound, r"),
        "mouth_real": _with_sound([real_pair]).described("real mouth with its own sound, r"),
        "mouth_movement": Number(movement, len(made)).described(
            "generated mouth movement, share of the real one"
        ),
    }


def mouth_and_sound(
    footage: Footage,
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"]]:
    """The inner lips' distance of each frame, in heights of brow to chin, and its loudness."""
    points = footage.track.landmarks.double().numpy()

    def apart(pair: tuple[int, int]) -> np.ndarray:
        return np.linalg.norm(points[:, pair[0]] - points[:, pair[1]], axis=1)

    num = min(footage.num_frames, len(footage.audio) // SAMPLES_PER_FRAME)
    loud = loudness(footage.audio[: num * SAMPLES_PER_FRAME], num).double().numpy()
    return apart(INNER_LIPS) / apart(BROW_TO_CHIN), loud


def contact_sheet(real: Video, made: Video, num_columns: int = 10) -> Figure:
    """Frames of the real clip above, of the generated video below, evenly spread over each."""
    lines = []
    for video in (real, made):
        picks = torch.linspace(0, len(video) - 1, num_columns).round().long()
        lines.append(list(video[picks]))
    seconds = [len(video) / FRAME_RATE_HZ for video in (real, made)]
    return picture_grid(
        lines,
        row_labels=[
            f"the real clip\n(0 to {seconds[0]:.0f} s)",
            f"generated, other\nspeech (0 to {seconds[1]:.0f} s)",
        ],
        side_inches=1.2,
    )


def _with_sound(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Number:
    """The largest r within ±5 frames over all pairs of mouth and loudness, each in units of its
    own spread, with Fisher's interval for one independent pair per quarter of a second (speech and
    mouths are smooth in time)."""

    def at(lag: int) -> float:
        late, early = max(lag, 0), max(-lag, 0)
        cut = []
        for mouth, loud in pairs:
            n = min(len(mouth), len(loud))
            cut.append((mouth[late : n - early], loud[early : n - late]))
        a, b = (np.concatenate([_unit(pair[i]) for pair in cut]) for i in (0, 1))
        return pearson(a, b)

    best = max(at(lag) for lag in range(-MAX_LAG, MAX_LAG + 1))
    independent = max(5, sum(min(len(a), len(b)) for a, b in pairs) // 6)
    return fisher(best, independent)


def _unit(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / max(float(x.std()), 1e-9)
