"""The super-resolution refiner against bicubic enlarging, 64 to 128 px.

Clips of TEST persons at 128 px are reduced to 64 px, sent through the VAE as a generated video is,
and made large again: bicubic, by each of ``--refiners``, and by the first without a reference. All
are compared with the true clip, person by person. Videos that the generator makes are read without
a truth.
"""

import argparse
from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.critics.frozen import weights_hash
from avatar_v.faces.face import FaceCritic
from avatar_v.generate.generator import EncodedPerson, LatentChunk
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.refine import TrainedRefiner, refine_chunks
from avatar_v.inputs.inputs import Inputs
from avatar_v.losses.flow import box_cover
from avatar_v.losses.perceptual import feature_loss
from avatar_v.media.pixels import to_uint8
from avatar_v.models.refiner import FACTOR, enlarge, reduce
from avatar_v.request.request import Request
from avatar_v.scoring.scorers.likeness import FaceWorldScorer
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    prepared_sound,
    rendered_video,
    signed,
)
from avatar_v_eval.generated import reference_clip
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings, Reading, Readings, gains, means
from avatar_v_eval.study_metrics import LOOKS, make_scored_clip
from avatar_v_eval.systems import named

SIZE, TILE = 128, 64
BICUBIC, CEILING, BLIND = "bicubic", "vae", "no_reference"
MEASURES = {
    "psnr": "PSNR",
    "psnr_mouth": "PSNR of the mouth",
    "perceptual": "perceptual distance",
    "perceptual_mouth": "perceptual distance of the mouth",
    "sharpness": "sharpness, share of the true clip's",
    "identity": "face similarity with the person elsewhere",
}
MADE = {name: f"generated video, {MEASURES[name]}" for name in ("sharpness", "identity")}
UNITS = {"psnr": "dB", "psnr_mouth": "dB"}

SignedVideo = Float[Tensor, "f 3 h w"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=32, frames=17, first=9000)
    add = parser.add_argument
    add("--refiners", nargs="+", default=["refined=small_refiner"], metavar="NAME=WEIGHTS")
    add("--generator", default="small", help="weights whose video is refined")
    add("--rows", type=int, default=6, help="persons of the picture")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    if options.rows < 1:
        raise ValueError(f"--rows: the picture has at least one person, got {options.rows}")
    torch.set_num_threads(1)
    pipeline = AvatarPipeline.from_pretrained(options.generator)
    refiners = {
        name: TrainedRefiner.from_pretrained(weights, pipeline.conditioner)
        for name, weights in named(options.refiners)
    }
    first = next(iter(refiners))
    words = {BICUBIC: "bicubic", **{name: name for name in refiners}}
    words |= {BLIND: f"{first}, no reference", CEILING: "the true clip through the VAE"}
    face = FaceWorldScorer()
    cases = asked_cases(options, reference_frames=options.frames, size=SIZE)

    def find(index: int) -> tuple[dict[str, Reading], dict[str, Tensor]]:
        case = cases[index]
        videos = reconstructed(case, refiners)
        readings = {name: read(video, case, face) for name, video in videos.items()}
        for name, video in generated(case, pipeline, refiners).items():
            readings[f"made_{name}"] = looks(
                video, case, signed(rendered_video(case.reference)), face
            )
        return readings, row(case, {name: videos[name] for name in (BICUBIC, *refiners)})

    found = mapped(find, len(cases), "persons", options.workers)
    readings = Readings({name: [of[name] for of, _ in found] for name in found[0][0]})
    weights = {name: weights_hash(r.dit.state_dict()) for name, r in refiners.items()}
    made = {f"made_{name}": words[name] for name in (BICUBIC, *refiners)}
    pairs = [(name, BICUBIC) for name in refiners] + [(first, BLIND)]
    pairs += [(name, first) for name in refiners]
    return Findings(
        "The refiner against enlarging, 64 to 128 px",
        means(readings, MEASURES, words, UNITS)
        | gains(readings, MEASURES, words, pairs, UNITS)
        | means(readings, MADE, made)
        | gains(readings, MADE, made, [(f"made_{name}", "made_bicubic") for name in refiners]),
        recipe="recipes/refiner.yaml recipes/small.yaml",
        weights={**weights, "vae": pipeline.conditioner.vae.hash(), "face": face.weights},
        notes=[
            cases_note(options, "; the reference is as long, from another scene; intervals over "
                       "persons"),
            f"low side: the true clip averaged down {FACTOR} times and through the VAE; its motion "
            "is the true one",
            "perceptual: feature maps of our face critic on 64 px pieces at full size; identity: "
            "the same critic on pictures averaged down to 64 px, so it sees no fine detail",
        ],
        figures={"": draw([pictures for _, pictures in found[: options.rows]])},
    )  # fmt: skip


@torch.inference_mode()
def reconstructed(case: Case, refiners: Mapping[str, TrainedRefiner]) -> dict[str, SignedVideo]:
    """The true clip made small and large again in every way."""
    first, true = next(iter(refiners.values())), signed(case.video)
    vae, motion = first.conditioner.vae, first.conditioner.pack_motion(case.motion[None])
    latents = vae.encode(reduce(true[None]))
    videos = {BICUBIC: enlarge(first.low_vae.decode(latents))[0]}
    for name, own in (*refiners.items(), (BLIND, first)):
        audio = own.conditioner.encode_audio(prepared_sound(case.target)[None])
        person = EncodedPerson(true[0], None if name == BLIND else _reference(case, own))
        part = LatentChunk(latents, case.audio, len(true), 0, audio, motion)
        bf16 = own.dit.patch_embed.weight.dtype == torch.bfloat16
        made = refine_chunks(own, person, case.prompt, iter([part]), seed=0, bf16=bf16)
        z = torch.cat([piece.latents for piece in made], dim=1).float()
        videos[name] = own.conditioner.vae.decode(z)[0]
    return {**videos, CEILING: vae.decode(vae.encode(true[None]))[0]}


def generated(
    case: Case, pipeline: AvatarPipeline, refiners: Mapping[str, TrainedRefiner]
) -> dict[str, SignedVideo]:
    """The person of the reference, generated with the speech of the case, enlarged and refined."""
    clip, said = reference_clip(case, len(case.reference.motion)), case.audio
    assert clip.motion is not None
    num = len(said) // SAMPLES_PER_FRAME
    inputs = Inputs(clip.video[0], said, num, 0, (), (clip,), clip.motion[0])
    request = Request.of(reference="", audio="", prompt=case.reference.text)
    frames = {}
    for name, refiner in {BICUBIC: None, **refiners}.items():
        pipeline.refiner = refiner
        frames[name] = signed(torch.cat(list(pipeline.stream(inputs, request))))
    return {**frames, BICUBIC: enlarge(frames[BICUBIC][None])[0]}


def _reference(case: Case, refiner: TrainedRefiner):
    clip = case.reference
    assert clip.valid is not None
    video = signed(rendered_video(clip))
    return refiner.conditioner.encode_clip(video, clip.valid, prepared_sound(clip), clip.motion)


def read(video: SignedVideo, case: Case, face: FaceWorldScorer) -> Reading:
    """Each measure of one video against the true one."""
    true, mouth = signed(case.video), _corners(case)
    assert case.target.mouth_box is not None
    error = ((video - true) / 2).square().mean(1, keepdim=True)
    inside = box_cover(case.target.mouth_box[None], SIZE, SIZE)[0]
    distance = partial(_distance, face.critic)
    return {
        "psnr": float(-10 * error.mean().log10()),
        "psnr_mouth": float(-10 * ((error * inside).sum() / inside.sum()).log10()),
        "perceptual": distance(_tiles(video), _tiles(true)),
        "perceptual_mouth": distance(_cut(video, mouth), _cut(true, mouth)),
        **looks(video, case, true, face),
    }


def looks(video: SignedVideo, case: Case, true: SignedVideo, face: FaceWorldScorer) -> Reading:
    """Likeness, and sharpness as a share of another video's, of all frames but the first."""
    clip, other = (make_scored_clip(case, to_uint8(each)) for each in (video, true))
    sharpness = [LOOKS["sharpness"].score(each).values["sharpness"] for each in (clip, other)]
    return {
        "sharpness": sharpness[0] / sharpness[1],
        "identity": face.score(clip).values["face_world"],
    }


def row(case: Case, videos: Mapping[str, SignedVideo]) -> dict[str, Tensor]:
    """Each video and the true one: a middle frame, then its mouth; by the words above the picture's
    columns."""
    middle = len(case.video) // 2
    pictures = torch.stack([*(x[middle] for x in videos.values()), signed(case.video)[middle]])
    corners = _corners(case)[middle : middle + 1].expand(len(pictures), 2)
    parts = {"": pictures, "mouth, ": _cut(pictures, corners)}
    return {
        before + word: picture
        for before, of in parts.items()
        for word, picture in zip([*videos, "true"], to_uint8(of), strict=True)
    }


def draw(rows: list[dict[str, Tensor]]) -> Figure:
    """A row of pictures for each person."""
    return picture_grid([list(line.values()) for line in rows], column_labels=list(rows[0]))


@torch.inference_mode()
def _distance(critic: FaceCritic, pictures: Tensor, true: Tensor) -> float:
    features, expected = critic.features(pictures), critic.features(true)
    return float(feature_loss(features, expected).mean())


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
