"""A real face, end to end: ``python -m avatar_v_eval.own_face CLIP SPEECH --work DIR``.

Imports one real clip, trains on from the shipped weights by ``recipes/own_face_vae.yaml`` and
``own_face.yaml``, generates the person speaking ``SPEECH``, and scores the result: is it this
person (dlib's face embedding, against the clip itself and against other people), and does the mouth
move with the sound (dlib's landmarks against loudness; the real clip's own value stands beside it).
Writes ``eval/results/own_face.json`` and ``own_face.png``. Needs the [faces] extra.
"""

import argparse
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from avatar_v import media
from avatar_v.critics.dlib_face import embed_faces
from avatar_v.critics.face_track import face_crop, track_faces
from avatar_v.generate.record import hash_folder
from avatar_v_eval import records
from avatar_v_eval.cases import loudness
from avatar_v_eval.records import Number, as_command, pearson
from avatar_v_eval.rollout import AVATAR_V

SHOWN_SIZE = 384
"""Small pictures are enlarged to this before dlib sees them; its detector needs 80 pixels."""
MAX_LAG = 5
TIMES = "times.json"  # wall seconds of each command, in the work folder
EMBED_EVERY = 5
INNER_LIPS, BROW_TO_CHIN = (62, 66), (27, 8)
"""Landmarks of the 68-point scheme."""

Video = UInt8[Tensor, "f 3 h w"]
Track = tuple[np.ndarray, Tensor]
"""A mouth's opening by frame, and the sound of the same video."""


@dataclass(frozen=True)
class Reading:
    """What dlib sees in a video."""

    faces: Float[np.ndarray, "k 128"]  # of every 5th frame in which a face was found
    mouth: Float[np.ndarray, " f"]  # inner lips apart, in heights of brow to chin
    found: float  # share of frames with a face

    @property
    def face(self) -> Float[np.ndarray, "128"]:
        return self.faces.mean(0)


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    work = Path(options.work)
    others = [_reading_of(path, options.size) for path in options.others]
    real = _head(media.read_video(options.clip), options.size)
    if not options.score_only:
        make_video(options, work)
    times = json.loads((work / TIMES).read_text(encoding="utf-8"))
    paths = [work / name for name in outputs(options)]
    made, truth = media.read_video(paths[0]), read(real)
    results = [read(media.read_video(path)) for path in paths]
    numbers = identity_numbers(truth, results[0], others)
    numbers |= mouth_numbers(
        (truth.mouth, media.read_audio(options.clip)),
        [(r.mouth, media.read_audio(path)) for r, path in zip(results, paths, strict=True)],
    )
    numbers |= {
        f"time_{k}": Number(v, 1).described(f"{k}, wall time", unit="s") for k, v in times.items()
    }
    contact_sheet(real, made, Path(options.out) / "own_face.png")
    record = records.make_result(
        "own_face",
        f"A real face: {Path(options.clip).name} speaks {_names(options)}",
        numbers,
        recipe="recipes/own_face_vae.yaml, recipes/own_face.yaml",
        weights={"pipeline": hash_folder(work / "run" / "weights")},
        notes=[
            "distance of dlib's ResNet face embeddings; the same person is usually below 0.6",
            "the clip is the one that was trained on, as a user would do; the speech is new",
            f"every video is scored at {options.size} px, enlarged to {SHOWN_SIZE} for dlib",
            "mouth: r of the inner lips' distance with loudness, at the best lag within ±5 frames, "
            "over all speeches; n counts quarters of a second",
        ],
    )
    print(records.write_result(record, options.out))
    for number in numbers.values():
        print(f"{number.label:64s} {number.value:8.3f}  [{number.low}, {number.high}]")


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
        return ["run", f"recipes/{recipe}.yaml", *places]

    commands = {
        "import": ["shards", "import", str(clips), "--out", video, "--frames", str(options.frames)],
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
        ]
    times = {}
    for name, words in commands.items():
        print("avatar-v", *words, flush=True)
        start_s = time.perf_counter()
        subprocess.run([*AVATAR_V, *words], check=True)
        times[name] = time.perf_counter() - start_s
        (work / TIMES).write_text(json.dumps(times) + "\n", encoding="utf-8")


def outputs(options: argparse.Namespace) -> dict[str, str]:
    """Which video says what."""
    more = {f"more_{i}.mp4": speech for i, speech in enumerate(options.more_speech)}
    return {"out.mp4": options.speech, **more}


def _names(options: argparse.Namespace) -> str:
    return ", ".join(Path(speech).name for speech in outputs(options).values())


def read(video: Video) -> Reading:
    """Faces and mouth of a video; ValueError where no frame shows a face."""
    x = F.interpolate(video.float(), (SHOWN_SIZE, SHOWN_SIZE), mode="bicubic", align_corners=False)
    large = x.round().clamp(0, 255).byte()
    seen = track_faces(large)
    if not bool(seen.found.any()):
        raise ValueError("dlib finds no face in this video")
    points = seen.landmarks.double().numpy()

    def apart(pair: tuple[int, int]) -> np.ndarray:
        return np.linalg.norm(points[:, pair[0]] - points[:, pair[1]], axis=1)

    shown = [i for i in range(0, len(video), EMBED_EVERY) if bool(seen.found[i])]
    faces = embed_faces(large[shown], seen.landmarks[shown]).values.double().numpy()
    return Reading(faces, apart(INNER_LIPS) / apart(BROW_TO_CHIN), float(seen.found.float().mean()))


def identity_numbers(real: Reading, made: Reading, others: list[Reading]) -> dict[str, Number]:
    """Embedding distances: generated to real, real to itself, generated to other people."""
    halves = np.array_split(real.faces, 2)
    strangers = [float(np.linalg.norm(made.face - other.face)) for other in others]
    own = np.linalg.norm(made.faces - real.face, axis=1)
    numbers = {
        "face_found": Number(made.found, 1).described(
            "generated frames in which dlib finds a face"
        ),
        "face_own": _mean(own).described(
            "distance of generated frames to the person", target="< 0.6"
        ),
        "face_ceiling": Number(
            float(np.linalg.norm(halves[0].mean(0) - halves[1].mean(0))), 1
        ).described("distance of the real clip's halves"),
    }
    if strangers:
        nearer = sum(float(np.linalg.norm(made.face - real.face)) < other for other in strangers)
        numbers["face_others"] = Number(
            float(np.mean(strangers)), len(strangers), min(strangers), max(strangers)
        ).described("distance to other people, lowest to highest")
        numbers["face_nearest"] = records.rate(nearer, len(strangers)).described(
            "other people who are farther than the person"
        )
    return numbers


def mouth_numbers(real: Track, made: list[Track]) -> dict[str, Number]:
    """Mouths against loudness: generated, generated against the sound of the next video (or of the
    real clip, where there is one video), and real."""
    own = [(mouth, _loud(sound, len(mouth))) for mouth, sound in made]
    louds = [loud for _, loud in own]
    real_pair = (real[0], _loud(real[1], len(real[0])))
    others = [*louds[1:], louds[0]] if len(made) > 1 else [real_pair[1]]
    other = [(mouth, loud) for (mouth, _), loud in zip(own, others, strict=True)]
    movement = float(np.mean([mouth.std() for mouth, _ in own]) / real[0].std())
    return {
        "mouth_made": _with_sound(own).described("generated mouth with its own sound, r"),
        "mouth_unrelated": _with_sound(other).described("generated mouth with another sound, r"),
        "mouth_real": _with_sound([real_pair]).described("real mouth with its own sound, r"),
        "mouth_movement": Number(movement, len(made)).described(
            "generated mouth movement, share of the real one"
        ),
    }


def contact_sheet(real: Video, made: Video, path: Path, num_columns: int = 10) -> None:
    """Real frames above, generated frames below, evenly spread, enlarged 2x."""
    rows = []
    for video in (real, made):
        picks = torch.linspace(0, len(video) - 1, num_columns).round().long()
        big = F.interpolate(video[picks].float(), scale_factor=2, mode="nearest").byte()
        rows.append(torch.cat(list(big), dim=2))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy()).save(path)


def _mean(values: Float[np.ndarray, " k"]) -> Number:
    if len(values) < 2:
        return Number(float(values[0]), 1)
    return records.bootstrap_mean(values)


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
    half = 1.96 / np.sqrt(independent - 3)
    z = np.arctanh(min(best, 0.999999))
    return Number(best, independent, float(np.tanh(z - half)), float(np.tanh(z + half)))


def _unit(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / max(float(x.std()), 1e-9)


def _loud(sound: Tensor, num_frames: int) -> np.ndarray:
    num = min(num_frames, len(sound) // 640)
    return loudness(sound[: num * 640], num).double().numpy()


def _head(video: Video, size: int) -> Video:
    """The head as the importer crops it."""
    return face_crop(video, track_faces(video), size)


def _reading_of(path: str, size: int) -> Reading:
    """Another person's; ValueError, before anything is trained, where no face is found."""
    try:
        return read(_head(media.read_video(path), size))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", help="a video of the person speaking")
    parser.add_argument("speech", help="the sound to speak: audio or video")
    parser.add_argument("--more-speech", nargs="*", default=[], help="spoken too, to measure lips")
    parser.add_argument("--others", nargs="*", default=[], help="videos or pictures of others")
    parser.add_argument("--work", default="runs/own_face", help="folder for shards and weights")
    parser.add_argument("--tune", action="append", default=[], help="--tune=--OPTION=VALUE")
    parser.add_argument("--train", action="append", default=[], help="--train=--OPTION=VALUE")
    parser.add_argument("--frames", type=int, default=97, help="of a training clip, 4k + 1")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--score-only", action="store_true", help="work/out.mp4 exists; score it")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    as_command(main)
