"""The super-resolution refiner against bicubic enlarging, 64 to 128 px.

Clips of TEST persons at 128 px are reduced to 64 px, sent through the VAE as a generated video is,
and made large again: bicubic, by the refiner, and by the refiner without a reference. All are
compared with the true clip, person by person. Videos that the generator makes are read without a
truth.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.critics.frozen import weights_hash
from avatar_v.critics.quality import sharpness
from avatar_v.faces.face import FaceCritic
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.refine import Refiner
from avatar_v.losses.flow import box_cover
from avatar_v.losses.perceptual import feature_loss
from avatar_v.media.pixels import to_uint8
from avatar_v.models.refiner import FACTOR
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    signed,
    video_of,
)
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings, Reading, Readings, gains, means
from avatar_v_eval.records import Number
from avatar_v_eval.studies.refiner_videos import Costs, SignedVideo, generated, reconstructed

SIZE, TILE = 128, 64
SYSTEMS = {
    "bicubic": "bicubic",
    "bicubic_vae": "bicubic, through the VAE",
    "refined": "refined",
    "no_reference": "refined, no reference",
    "low_decoder": "refined, the decoder of 64 px",
    "adversarial": "refined, after the adversarial phase",
    "vae": "the true clip through the VAE",
}
PAIRS = (
    ("refined", "bicubic"),
    ("refined", "no_reference"),
    ("refined", "low_decoder"),
    ("adversarial", "refined"),
    ("adversarial", "bicubic"),
)
PICTURED = {
    "bicubic": "bicubic",
    "refined": "refined",
    "adversarial": "refined, after the\nadversarial phase",
}
"""Words above the columns of the picture."""
MEASURES = {
    "psnr": "PSNR",
    "psnr_mouth": "PSNR of the mouth",
    "perceptual": "perceptual distance",
    "perceptual_mouth": "perceptual distance of the mouth",
    "sharpness": "sharpness, share of the true clip's",
    "sharpness_mouth": "sharpness of the mouth, share of the true clip's",
    "identity": "face similarity with the person elsewhere",
}
UNITS = {"psnr": "dB", "psnr_mouth": "dB"}
STEPS = {
    "decode": "decoding at 64 px",
    "refined": "refining: decode, enlarge, encode, one step",
    "no_reference": "the same without a reference",
    "decode_large": "decoding at 128 px",
}


@dataclass(frozen=True)
class PersonFindings:
    """The readings of one person by system, CPU seconds a frame, and a row of the picture."""

    readings: dict[str, Reading]
    costs: Costs
    pictures: dict[str, Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=32, frames=17, first=9000)
    add = parser.add_argument
    add("--weights", default="small_refiner", help="shipped refiner, or folder")
    add("--adversarial", help="folder of the refiner after its second phase")
    add("--generator", default="small", help="weights whose video is refined")
    add("--rows", type=int, default=6, help="persons of the picture")
    add("--generate", action=argparse.BooleanOptionalAction, default=True,
        help="also read videos that the generator makes")  # fmt: skip


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    if options.rows < 1:
        raise ValueError(f"--rows: the picture has at least one person, got {options.rows}")
    torch.set_num_threads(1)
    pipeline = AvatarPipeline.from_pretrained(options.generator, refiner=options.weights)
    assert pipeline.refiner is not None
    refiners = {"refined": pipeline.refiner}
    if options.adversarial is not None:
        refiners["adversarial"] = Refiner.from_pretrained(options.adversarial, pipeline.conditioner)
    critic = FaceCritic.from_pretrained()
    cases = asked_cases(options, reference_frames=options.frames, size=SIZE)

    def find(index: int) -> PersonFindings:
        case, costs = cases[index], {}
        videos = reconstructed(case, refiners, costs)
        readings = {name: read(video, case, critic) for name, video in videos.items()}
        if options.generate:
            for name, video in generated(case, pipeline, refiners).items():
                readings[f"made_{name}"] = read_without_truth(video, case, critic)
        return PersonFindings(readings, costs, row(case, videos))

    found = mapped(find, len(cases), "persons", options.workers)
    readings = Readings(
        {name: [person.readings[name] for person in found] for name in found[0].readings}
    )
    weights = {name: weights_hash(r.dit.state_dict()) for name, r in refiners.items()}
    return Findings(
        "The refiner against enlarging, 64 to 128 px",
        numbers_of(readings) | costs_of([person.costs for person in found]),
        recipe="recipes/refiner.yaml recipes/small.yaml",
        weights={**weights, "vae": pipeline.conditioner.vae.hash(), "face": critic.hash()},
        notes=[
            cases_note(options, "; the reference is as long, from another scene; intervals over "
                       "persons"),
            f"low side: the true clip averaged down {FACTOR} times and through the VAE; its motion "
            "is the true one",
            "perceptual: feature maps of our face critic on 64 px pieces at full size; identity: "
            "the same critic on pictures averaged down to 64 px, so it sees no fine detail",
        ],
        figures={"": draw([person.pictures for person in found[: options.rows]])},
    )  # fmt: skip


def read(video: SignedVideo, case: Case, critic: FaceCritic) -> Reading:
    """Each measure of one video against the true one, all frames."""
    true, mouth = signed(case.video), _corners(case)
    assert case.target.mouth_box is not None
    error = ((video - true) / 2).square().mean(1, keepdim=True)
    inside = box_cover(case.target.mouth_box[None], SIZE, SIZE)[0]
    small, small_true = _cut(video, mouth), _cut(true, mouth)
    return {
        "psnr": float(-10 * error.mean().log10()),
        "psnr_mouth": float(-10 * ((error * inside).sum() / inside.sum()).log10()),
        "perceptual": _distance(critic, _tiles(video), _tiles(true)),
        "perceptual_mouth": _distance(critic, small, small_true),
        "sharpness": _share(video, true),
        "sharpness_mouth": _share(small, small_true),
        "identity": _similarity(critic, video, case),
    }


def read_without_truth(video: SignedVideo, case: Case, critic: FaceCritic) -> Reading:
    """Each measure of a generated video, of all frames but the first, which is given."""
    return {
        "sharpness": _share(video[1:], signed(video_of(case.reference))[1:]),
        "identity": _similarity(critic, video[1:], case),
    }


def numbers_of(readings: Readings) -> dict[str, Number]:
    """Every measure of every system; and paired differences, person by person."""
    words = {name: label for name, label in SYSTEMS.items() if name in readings.rows}
    made = {f"made_{name}": label for name, label in SYSTEMS.items()}
    few = {name: f"generated video, {MEASURES[name]}" for name in ("sharpness", "identity")}
    pairs = [(name, "made_bicubic") for name in ("made_refined", "made_adversarial")]
    return (
        means(readings, MEASURES, words, UNITS)
        | gains(readings, MEASURES, words, PAIRS, UNITS)
        | means(readings, few, made)
        | gains(readings, few, made, pairs)
    )


def costs_of(costs: list[Costs]) -> dict[str, Number]:
    """CPU milliseconds a frame: processor time of one thread, which others do not lengthen much."""
    return {
        f"cost_{name}": mean_of(
            1000 * np.array([second for person in costs for second in person[name]])
        ).described(f"CPU time a frame: {word}", unit="ms")
        for name, word in STEPS.items()
    }


def row(case: Case, videos: dict[str, SignedVideo]) -> dict[str, Tensor]:
    """Bicubic, refined (and adversarial), true: a middle frame of each, then their mouths; by the
    words above the picture's columns."""
    middle = len(videos["bicubic"]) // 2
    names = [name for name in PICTURED if name in videos]
    true = signed(case.video)[middle]
    pictures = torch.stack([*(videos[name][middle] for name in names), true])
    corners = _corners(case)[middle : middle + 1].expand(len(pictures), 2)
    words = [*(PICTURED[name] for name in names), "true"]
    parts = {"": pictures, "mouth, ": _cut(pictures, corners)}
    return {
        before + word: picture
        for before, of in parts.items()
        for word, picture in zip(words, to_uint8(of), strict=True)
    }


def draw(rows: list[dict[str, Tensor]]) -> Figure:
    """A row of pictures for each person."""
    return picture_grid([list(line.values()) for line in rows], column_labels=list(rows[0]))


def _similarity(critic: FaceCritic, video: SignedVideo, case: Case) -> float:
    mine, other = (critic.embed_clip(x) for x in (to_uint8(video), case.third_video))
    return float(mine @ other)


@torch.inference_mode()
def _distance(critic: FaceCritic, pictures: Tensor, true: Tensor) -> float:
    features, expected = critic.features(pictures), critic.features(true)
    return float(feature_loss(features, expected).mean())


def _share(video: SignedVideo, true: SignedVideo) -> float:
    return float(sharpness(to_uint8(video)).mean() / sharpness(to_uint8(true)).mean())


def _tiles(video: SignedVideo) -> Float[Tensor, "n 3 t t"]:
    """Every frame in four pieces of the critic's size, so that nothing is averaged down."""
    pieces = video.unfold(2, TILE, TILE).unfold(3, TILE, TILE)
    return pieces.movedim(1, 3).flatten(0, 2)


def _corners(case: Case) -> Tensor:
    """Top left corner "f 2" (y, x) of the 64 px around the mouth of each frame."""
    box = case.target.mouth_box
    assert box is not None
    centre = (box[:, [1, 0]] + box[:, [3, 2]]) / 2 * SIZE
    return (centre - TILE / 2).round().clamp(0, SIZE - TILE).long()


def _cut(video: SignedVideo, corners: Tensor) -> Float[Tensor, "f 3 t t"]:
    parts = zip(video, corners.tolist(), strict=True)
    return torch.stack([x[:, top : top + TILE, left : left + TILE] for x, (top, left) in parts])
