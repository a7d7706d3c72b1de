"""What the refiner adds to enlarging: ``python -m avatar_v_eval.refiner``.

Clips of TEST persons at 128 px are reduced to 64 px, sent through the VAE as a generated video is,
and made large again: bicubic, by the refiner, and by the refiner without a reference. All are
compared with the true clip, person by person. Videos that the generator makes are judged without a
truth. Writes ``eval/results/refiner.json`` and ``refiner.png``.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.frozen import weights_hash
from avatar_v.critics.quality import sharpness
from avatar_v.generate.generator import Person, Sampled, to_uint8
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.generate.refine import Refiner, refine_chunks
from avatar_v.losses.flow import box_cover
from avatar_v.losses.human import perceptual_loss
from avatar_v.loudness import normalise_loudness
from avatar_v.models.motion import pack_motion
from avatar_v.models.refiner import FACTOR, enlarge, reduce
from avatar_v.types import Request
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, bootstrap_mean
from avatar_v_eval.workers import mapped

SIZE, TILE = 128, 64
Video = Float[Tensor, "f 3 h w"]
Values = dict[str, list[float]]

SYSTEMS = {
    "bicubic": "bicubic",
    "bicubic_vae": "bicubic, through the VAE",
    "refined": "refined",
    "no_reference": "refined, no reference",
    "low_decoder": "refined, the decoder of 64 px",
    "adversarial": "refined, after the adversarial phase",
    "vae": "the true clip through the VAE",
}
MEASURES = {
    "psnr": ("PSNR", "dB"),
    "psnr_mouth": ("PSNR of the mouth", "dB"),
    "perceptual": ("perceptual distance", ""),
    "perceptual_mouth": ("perceptual distance of the mouth", ""),
    "sharpness": ("sharpness, share of the true clip's", ""),
    "sharpness_mouth": ("sharpness of the mouth, share of the true clip's", ""),
    "identity": ("face similarity with the person elsewhere", ""),
}


@dataclass(frozen=True)
class Shown:
    """One test person: what is said and seen in one scene, and the person in another."""

    true: WorldClip
    elsewhere: WorldClip

    @classmethod
    def make(cls, ids: tuple[int, int, int, int, int], num_frames: int) -> "Shown":
        person, here, there, said, other = ids
        return cls(
            make_clip(person, here, said, num_frames=num_frames, size=SIZE),
            make_clip(person, there, other, num_frames=num_frames, size=SIZE),
        )


@dataclass(frozen=True)
class Judged:
    """What was measured of one person."""

    values: dict[str, dict[str, float]]  # of each system, by measure
    costs: dict[str, list[float]]  # CPU seconds a frame
    row: Tensor | None  # of the picture


def joined(judged: list[Judged]) -> tuple[dict[str, Values], dict[str, list[float]]]:
    """Values of all persons, by system and measure; and all costs."""
    first = judged[0]
    values = {
        name: {measure: [person.values[name][measure] for person in judged] for measure in of}
        for name, of in first.values.items()
    }
    costs = {name: [c for person in judged for c in person.costs[name]] for name in first.costs}
    return values, costs


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    pipeline = AvatarPipeline.from_pretrained(options.generator, refiner=options.weights)
    assert pipeline.refiner is not None
    refiners = {"refined": pipeline.refiner}
    if options.adversarial is not None:
        refiners["adversarial"] = Refiner.from_pretrained(options.adversarial, pipeline.conditioner)
    critic = FaceCritic.from_pretrained()
    cases = _ids(options.split, options.persons, options.first)

    def judge(index: int) -> Judged:
        shown, costs = Shown.make(cases[index], options.frames), {}
        videos = reconstructed(shown, refiners, costs)
        values = {name: measured(video, shown, critic) for name, video in videos.items()}
        if options.generate:
            for name, video in generated(shown, pipeline, refiners).items():
                values[f"made_{name}"] = seen(video, shown, critic)
        return Judged(values, costs, row(shown, videos) if index < options.rows else None)

    judged = mapped(judge, len(cases), "persons", options.workers)
    values, costs = joined(judged)
    numbers = numbers_of(values) | costs_of(costs)
    weights = {name: weights_hash(r.dit.state_dict()) for name, r in refiners.items()}
    result = records.make_result(
        options.name,
        "The refiner against enlarging, 64 to 128 px",
        numbers,
        recipe="recipes/refiner.yaml recipes/small.yaml",
        weights={**weights, "vae": pipeline.conditioner.vae.hash(), "face": critic.hash()},
        notes=_notes(options),
    )
    print(records.write_result(result, options.out))
    sheets = [person.row for person in judged if person.row is not None]
    Image.fromarray(torch.cat(sheets).numpy()).save(Path(options.out) / f"{options.name}.png")
    for number in numbers.values():
        print(f"{number.label:90s} {number.value:8.4f}  [{number.low}, {number.high}]")


@torch.inference_mode()
def reconstructed(
    shown: Shown, refiners: dict[str, Refiner], costs: dict[str, list[float]]
) -> dict[str, Video]:
    """The true clip made small and large again in every way; and CPU seconds a frame."""
    refiner, true = refiners["refined"], _signed(shown.true)
    vae, motion = refiner.conditioner.vae, pack_motion(shown.true.motion[None])
    heard = normalise_loudness(shown.true.audio)
    latents = vae.encode(reduce(true[None]))
    small = _timed(costs, "decode", len(true), lambda: refiner.low_vae.decode(latents))
    large = enlarge(small)
    videos = {"bicubic": large[0], "bicubic_vae": vae.decode(vae.encode(large))[0]}
    for name, own in (*refiners.items(), ("no_reference", refiner)):
        audio = own.conditioner.encode_audio(heard[None])
        person = Person(true[0], None if name == "no_reference" else _reference(shown, own))
        part = Sampled(latents, shown.true.audio, len(true), 0, audio, motion)

        def refine(own: Refiner = own, person: Person = person, part: Sampled = part) -> Tensor:
            made = refine_chunks(own, person, shown.true.text, iter([part]), seed=0)
            return torch.cat([piece.latents for piece in made], dim=1)

        z, decode = _timed(costs, name, len(true), refine), own.conditioner.vae.decode
        videos[name] = _timed(costs, "decode_large", len(true), lambda z=z, d=decode: d(z))[0]
        if name == "refined" and own.conditioner.vae.hash() != own.low_vae.hash():
            videos["low_decoder"] = own.low_vae.decode(z)[0]
    videos["vae"] = vae.decode(vae.encode(true[None]))[0]
    return videos


def generated(
    shown: Shown, pipeline: AvatarPipeline, refiners: dict[str, Refiner]
) -> dict[str, Video]:
    """What the generator makes of the person elsewhere, enlarged and refined: the same latents."""
    elsewhere = shown.elsewhere
    assert elsewhere.video is not None
    assert elsewhere.valid is not None
    audio = normalise_loudness(elsewhere.audio)
    clip = ReferenceClip(elsewhere.video, elsewhere.valid, audio, elsewhere.motion)
    said = shown.true.audio
    inputs = Inputs(clip.video[0], said, len(said) // 640, 0, (), (clip,), elsewhere.motion[0])
    request = Request(reference="", audio="", out="", prompt=elsewhere.text)
    frames = {}
    for name, refiner in {"bicubic": None, **refiners}.items():
        pipeline.refiner = refiner
        frames[name] = torch.cat(list(pipeline.stream(inputs, request)))
    small = _floats(frames.pop("bicubic"))
    refined = {name: _floats(large) for name, large in frames.items()}
    return {"bicubic": enlarge(small[None])[0], **refined}


def measured(video: Video, shown: Shown, critic: FaceCritic) -> dict[str, float]:
    """Each measure of one video against the true one, all frames."""
    true, mouth = _signed(shown.true), _crops(shown.true)
    assert shown.true.mouth_box is not None
    error = ((video - true) / 2).square().mean(1, keepdim=True)
    inside = box_cover(shown.true.mouth_box[None], SIZE, SIZE)[0]
    small, small_true = _cut(video, mouth), _cut(true, mouth)
    return {
        "psnr": float(-10 * error.mean().log10()),
        "psnr_mouth": float(-10 * ((error * inside).sum() / inside.sum()).log10()),
        "perceptual": _distance(critic, _tiles(video), _tiles(true)),
        "perceptual_mouth": _distance(critic, small, small_true),
        "sharpness": _share(video, true),
        "sharpness_mouth": _share(small, small_true),
        "identity": _identity(video, shown, critic),
    }


def seen(video: Video, shown: Shown, critic: FaceCritic) -> dict[str, float]:
    """What can be said of a video without its truth: all but the first, given frame."""
    return {
        "sharpness": _share(video[1:], _signed(shown.elsewhere)[1:]),
        "identity": float(
            critic.embed_clip(to_uint8(video[1:])) @ critic.embed_clip(_frames(shown.true))
        ),
    }


def numbers_of(values: dict[str, Values]) -> dict[str, Number]:
    """Every measure of every system; and paired differences, person by person."""
    numbers = {}
    for measure, (word, unit) in MEASURES.items():
        for name, label in SYSTEMS.items():
            if name in values:
                found = bootstrap_mean(np.array(values[name][measure]))
                numbers[f"{measure}_{name}"] = found.described(f"{word}: {label}", unit=unit)
        for better, worse in (
            ("refined", "bicubic"),
            ("refined", "no_reference"),
            ("refined", "low_decoder"),
            ("adversarial", "refined"),
            ("adversarial", "bicubic"),
        ):
            if better in values and worse in values:
                gain = np.array(values[better][measure]) - np.array(values[worse][measure])
                label = f"{word}: {SYSTEMS[better]} minus {SYSTEMS[worse]}"
                key = f"{measure}_{better}_minus_{worse}"
                numbers[key] = bootstrap_mean(gain).described(label, unit=unit)
    for measure in ("sharpness", "identity"):
        word = "generated video, " + MEASURES[measure][0]
        made = {
            name: np.array(values[f"made_{name}"][measure])
            for name in SYSTEMS
            if f"made_{name}" in values
        }
        for name, found in made.items():
            described = bootstrap_mean(found).described(f"{word}: {SYSTEMS[name]}")
            numbers[f"made_{measure}_{name}"] = described
            if name != "bicubic":
                gain = bootstrap_mean(found - made["bicubic"])
                label = f"{word}: {SYSTEMS[name]} minus bicubic"
                numbers[f"made_{measure}_{name}_minus_bicubic"] = gain.described(label)
    return numbers


def costs_of(costs: dict[str, list[float]]) -> dict[str, Number]:
    """CPU milliseconds a frame: processor time of one thread, which others do not lengthen much."""
    words = {
        "decode": "decoding at 64 px",
        "refined": "refining: decode, enlarge, encode, one step",
        "no_reference": "the same without a reference",
        "decode_large": "decoding at 128 px",
    }
    return {
        f"cost_{name}": bootstrap_mean(1000 * np.array(costs[name])).described(
            f"CPU time a frame: {word}", unit="ms"
        )
        for name, word in words.items()
    }


def row(shown: Shown, videos: dict[str, Video]) -> Tensor:
    """Bicubic, refined (and adversarial), true: a middle frame, then its mouth, enlarged."""
    middle = len(videos["bicubic"]) // 2
    pictures = [videos[n] for n in ("bicubic", "refined", "adversarial") if n in videos]
    pictures = torch.stack([v[middle] for v in (*pictures, _signed(shown.true))])
    boxes = _crops(shown.true)[middle : middle + 1].expand(len(pictures), 2)
    mouths = F.interpolate(_cut(pictures, boxes), (SIZE, SIZE), mode="nearest")
    line = torch.cat([*pictures, *mouths], dim=2)[None]
    return to_uint8(F.interpolate(line, scale_factor=2.0, mode="nearest"))[0].movedim(0, 2)


def _ids(split: str, num: int, first: int) -> list[tuple[int, int, int, int, int]]:
    """Of ``num`` persons: person, two scenes and two speeches each."""
    people = persons(split, num, first)
    places, speeches = (take(split, 2 * num, 2 * first) for take in (scenes, sentences))
    columns = people, places[::2], places[1::2], speeches[::2], speeches[1::2]
    return list(zip(*columns, strict=True))


def _reference(shown: Shown, refiner: Refiner):
    clip = shown.elsewhere
    assert clip.valid is not None
    audio = normalise_loudness(clip.audio)
    return refiner.conditioner.encode_clip(_signed(clip), clip.valid, audio, clip.motion)


def _timed(costs: dict[str, list[float]], name: str, num_frames: int, work) -> Tensor:
    begin = time.process_time()
    made = work()
    costs.setdefault(name, []).append((time.process_time() - begin) / num_frames)
    return made


def _identity(video: Video, shown: Shown, critic: FaceCritic) -> float:
    mine, theirs = (critic.embed_clip(x) for x in (to_uint8(video), _frames(shown.elsewhere)))
    return float(mine @ theirs)


@torch.inference_mode()
def _distance(critic: FaceCritic, pictures: Tensor, true: Tensor) -> float:
    seen, expected = critic.features(pictures), critic.features(true)
    return float(perceptual_loss(seen, expected, torch.ones(len(pictures))))


def _share(video: Video, true: Video) -> float:
    return float(sharpness(to_uint8(video)).mean() / sharpness(to_uint8(true)).mean())


def _tiles(video: Video) -> Float[Tensor, "n 3 t t"]:
    """Every frame in four pieces of the critic's size, so that nothing is averaged down."""
    pieces = video.unfold(2, TILE, TILE).unfold(3, TILE, TILE)
    return pieces.movedim(1, 3).flatten(0, 2)


def _crops(clip: WorldClip) -> Tensor:
    """Top left corner "f 2" (y, x) of the 64 px around the mouth of each frame."""
    assert clip.mouth_box is not None
    centre = (clip.mouth_box[:, [1, 0]] + clip.mouth_box[:, [3, 2]]) / 2 * SIZE
    return (centre - TILE / 2).round().clamp(0, SIZE - TILE).long()


def _cut(video: Video, corners: Tensor) -> Float[Tensor, "f 3 t t"]:
    parts = zip(video, corners.tolist(), strict=True)
    return torch.stack([x[:, top : top + TILE, left : left + TILE] for x, (top, left) in parts])


def _signed(clip: WorldClip) -> Video:
    return _floats(_frames(clip))


def _frames(clip: WorldClip) -> Tensor:
    assert clip.video is not None
    return clip.video


def _floats(frames: Tensor) -> Video:
    return frames.float() / 127.5 - 1


def _notes(options: argparse.Namespace) -> list[str]:
    return [
        f"{options.persons} {options.split.upper()} persons from number {options.first} on, "
        f"{options.frames} frames each; the reference is as long, from another scene; intervals "
        "over persons, bootstrapped",
        f"low side: the true clip averaged down {FACTOR} times and through the VAE; its motion is "
        "the true one",
        "perceptual: feature maps of our face critic on 64 px pieces at full size; identity: the "
        "same critic on pictures averaged down to 64 px, so it sees no fine detail",
    ]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the refiner adds to enlarging.")
    parser.add_argument("--weights", default="small_refiner", help="shipped refiner, or folder")
    parser.add_argument("--adversarial", help="folder of the refiner after its second phase")
    parser.add_argument("--generator", default="small", help="weights whose video is refined")
    parser.add_argument("--persons", type=int, default=32)
    parser.add_argument("--first", type=int, default=9000, help="number of the first person")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--frames", type=int, default=17, help="per clip, 4k + 1")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--rows", type=int, default=6, help="persons of the picture")
    parser.add_argument("--generate", action=argparse.BooleanOptionalAction, default=True,
        help="also judge videos that the generator makes")  # fmt: skip
    parser.add_argument("--name", default="refiner", help="of the result: NAME.json and NAME.png")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    as_command(main)
