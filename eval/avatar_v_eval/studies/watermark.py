"""The mark in generated frames: what it survives, how often it is seen where there is none, and
what it changes.

Drawn clips of TEST persons, and with ``--generated`` videos that the weights make, are written as
`avatar-v generate` writes them, with the mark and without, and then attacked: encoded again, cut,
scaled, cropped, mirrored, played faster. A clip without a mark is read with several keys.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.files import Mp4File
from avatar_v.media.reading import read_video
from avatar_v.media.writer import Writer
from avatar_v.request.request import Request
from avatar_v.safety.detect import MOST_FALSE, detect
from avatar_v.safety.watermark import Mark, Marker
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_eval.cases import (
    Case,
    Video,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
)
from avatar_v_eval.generated import generate
from avatar_v_eval.intervals import mean_interval, rate, within_unit
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings, Reading, Readings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.study_metrics import StudyMetrics, picture_shares

NUM_KEYS = 8
"""Keys that a clip without a mark is read with."""
CRF_OF_ATTACKS = 23
"""x264's default."""
ATTACKS = {
    "none": "as generate writes it",
    "crf_18": "encoded again, CRF 18",
    "crf_23": "encoded again, CRF 23",
    "crf_28": "encoded again, CRF 28",
    "cut": "3 s cut out, CRF 23",
    "double": "twice the size, CRF 23",
    "half": "half the size, CRF 23",
    "light": "contrast × 1.2 and darker by 10, CRF 23",
    "crop": "6 % of each side cropped, CRF 23",
    "mirrored": "mirrored, CRF 23",
    "padded": "black bars to 9:16, CRF 23",
    "faster": "1.1 times as fast, CRF 23",
    "slower": "0.9 times as fast, CRF 23",
}
CHANGES = {
    "mouth": "mouth r",
    "sync": "sync confidence",
    "identity": "face similarity in a third scene",
    "sharpness": "sharpness, share of the unmarked video's",
    "flicker": "flicker, share of the unmarked video's",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=32, frames=125, first=9500)
    parser.add_argument("--size", type=int, default=64, help="pixels of the picture")
    parser.add_argument("--generated", type=int, default=0, help="persons of generated videos")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    torch.set_num_threads(1)
    metrics = StudyMetrics.held_out()
    cases = asked_cases(
        options, reference_frames=options.frames if options.generated else 1, size=options.size
    )

    rows = mapped(
        lambda i: read(cases[i], cases[i].video, metrics),
        len(cases),
        "drawn clips",
        options.workers,
    )
    numbers = summarise_condition(Readings({"drawn": rows}), "drawn", "")
    weights = metrics.hashes()
    if options.generated:
        pipeline = AvatarPipeline.from_pretrained()
        rollout = Rollout(pipeline, Request.of(reference="", audio=""))
        made = [
            read(case, generate(rollout, case, options.frames).video, metrics)
            for case in cases[: options.generated]
        ]
        numbers |= summarise_condition(Readings({"made": made}), "made", "generated, ")
    return Findings(
        f"The mark in frames of {options.size} px: attacks, false alarms, changes",
        numbers,
        weights=weights,
        notes=[
            cases_note(options),
            f"an unmarked clip is read with {NUM_KEYS} keys; the bound of false alarms is "
            f"{MOST_FALSE:g} a video",
            "changes: marked less unmarked, both as generate writes them; critics are the "
            "held-out ones",
        ],
    )


def read(case: Case, video: Video, metrics: StudyMetrics) -> Reading:
    """All measures of one video, with a mark of its own and without."""
    id_ = watermark_id(case)
    drawn = Marker(Mark(id_))(video)
    plain, marked = written(video), written(drawn)
    reading: dict[str, float] = {"psnr": psnr(drawn, video)}
    for name in ATTACKS:
        found = detect(attacked(name, marked))
        wrong = (int(found.best, 16) ^ int(id_, 16)).bit_count()
        reading[f"right_{name}"] = float(found.id == id_)
        reading[f"wrong_{name}"] = float(found.id not in (None, id_))
        reading[f"bits_{name}"] = 1 - wrong / 32
    keys = [hashlib.sha256(b"key %d" % i).digest() for i in range(NUM_KEYS)]
    others = [detect(plain, key) for key in keys]
    reading["false"] = float(sum(found.is_marked for found in others))
    reading["false_z"] = max(found.z for found in others)
    before, after = (score_video(case, x, plain, metrics) for x in (plain, marked))
    return reading | {name: after[name] - before[name] for name in CHANGES}


def watermark_id(case: Case) -> str:
    return hashlib.sha256(b"case %d" % case.person_id).hexdigest()[:8]


def score_video(case: Case, video: Video, plain: Video, metrics: StudyMetrics) -> dict[str, float]:
    """What critics read."""
    return {**metrics.read(case, video), **picture_shares(case, video, plain)}


def attacked(name: str, video: Video) -> Video:
    """A video as ``name`` of the `ATTACKS` leaves it."""
    height, width = video.shape[2:]
    changes: dict[str, Callable[[], Video]] = {
        "cut": lambda: video[23:98],
        "double": lambda: _scaled(video, 2.0),
        "half": lambda: _scaled(video, 0.5),
        "light": lambda: (1.2 * video.float() - 10).round().clamp(0, 255).to(torch.uint8),
        "crop": lambda: video[:, :, height // 64 : -3 * height // 64, width // 32 : -width // 32],
        "mirrored": lambda: video.flip(3),
        "padded": lambda: _padded(video),
        "faster": lambda: _at_speed(video, 1.1),
        "slower": lambda: _at_speed(video, 0.9),
    }
    if name == "none":
        return video
    if name in changes:
        return written(changes[name](), CRF_OF_ATTACKS)
    return written(video, int(name.removeprefix("crf_")))


class _Mp4At(Mp4File):
    """An mp4 with another quality."""

    def __init__(self, path: Path, crf: int) -> None:
        super().__init__(path)
        self.x264 = {"crf": str(crf)}


def written(video: Video, crf: int | None = None) -> Video:
    """The frames behind an mp4, as `generate` writes it or at another CRF."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        with Writer(Mp4File(path) if crf is None else _Mp4At(path, crf)) as writer:
            writer.write(video, torch.zeros(len(video) * SAMPLES_PER_FRAME))
        return read_video(path)


def summarise_condition(readings: Readings, condition: str, before: str) -> dict[str, Number]:
    """Shares and means over the clips of a condition; ``before`` begins their labels."""
    numbers: dict[str, Number] = {}

    def hits(measure: str, each: int = 1) -> Number:
        found = readings.values(condition, measure)
        return rate(round(found.sum()), each * len(found))

    def mean(measure: str) -> Number:
        return mean_interval(readings.values(condition, measure))

    for name, words in ATTACKS.items():
        numbers[f"right_{name}"] = hits(f"right_{name}").described(f"{before}id read: {words}")
    for name, words in ATTACKS.items():
        label = f"{before}right bits of the best guess: {words}"
        numbers[f"bits_{name}"] = within_unit(mean(f"bits_{name}")).described(label)
    wrong = np.stack([readings.values(condition, f"wrong_{name}") for name in ATTACKS])
    numbers["wrong"] = rate(round(wrong.max(0).sum()), wrong.shape[1]).described(
        f"{before}videos of which any of these gives a wrong id"
    )
    false = hits("false", each=NUM_KEYS)
    numbers["false"] = false.described(f"{before}a mark found where there is none")
    largest = Number(readings.values(condition, "false_z").max(), false.n)
    numbers["false_z"] = largest.described(f"{before}largest z where there is no mark")
    numbers["psnr"] = mean("psnr").described(f"{before}PSNR of the marked frames", unit="dB")
    for name, words in CHANGES.items():
        numbers[f"change_{name}"] = mean(name).described(f"{before}change by the mark: {words}")
    ending = "" if condition == "drawn" else f"_{condition}"
    return {f"{name}{ending}": number for name, number in numbers.items()}


def _scaled(video: Video, factor: float) -> Video:
    large = F.interpolate(video.float(), scale_factor=factor, mode="bilinear", antialias=True)
    return large.round().clamp(0, 255).to(torch.uint8)


def _padded(video: Video) -> Video:
    """In the middle of 9:16, which is higher than it is wide."""
    height, width = video.shape[2:]
    above = (round(width * 16 / 9) - height) // 4 * 2
    return F.pad(video, (0, 0, above, above))


def _at_speed(video: Video, speed: float) -> Video:
    """With frames left out or shown twice."""
    return video[(torch.arange(int(len(video) / speed)) * speed).round().long()]


def psnr(video: Video, true: Video) -> float:
    return float(-10 * ((video.float() - true.float()) / 255).square().mean().log10())
