"""A request: a person and speech, the way to sample, and the place for the video.

Each field says once its type, its range, its option on the command line and its help: Python, the
command line (commands/generate.py) and out.json have the same fields. checks.py checks the values
before any work. Neither torch nor any media library is imported here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.options import option
from avatar_v.base.stored import Count, Guidance, Within, built
from avatar_v.engines.voices import DRAWN
from avatar_v.models.config import PastKind, Sink
from avatar_v.weights.card import DEFAULT_WEIGHTS

LIVE = "-"
"""As ``audio``: a sound that is still being made."""
PERSON_FILE = ".person"
"""The suffix of a ``reference`` that `avatar-v person` has read (inputs/person_file.py)."""


def is_person_file(path: str | Path) -> bool:
    """Whether a reference is one, by its name."""
    return Path(path).suffix.lower() == PERSON_FILE


@dataclass(frozen=True)
class PersonOptions:
    """The person, the scene, and the speech."""

    reference: str = option(
        "video or picture of the person, or a file that `avatar-v person` made of them",
        flag="--reference", metavar="FILE", first=True,
    )  # fmt: skip
    audio: str | None = option(
        "speech: any file; -: PCM on stdin, live",
        flag="--audio", default=None, metavar="FILE|-", first=True,
    )  # fmt: skip
    listen: str | None = option(
        "the voice of somebody else, whom the person listens to: any file",
        flag="--listen", default=None, metavar="FILE",
    )  # fmt: skip
    script: str | None = option(
        "what is to be said, instead of --audio: text, or a file that ends in .txt",
        flag="--script", default=None, metavar="TEXT|FILE.txt", first=True,
    )  # fmt: skip
    voice: str = option(
        "of the script: drawn, drawn:N, a file of `avatar-v voice`, or a folder with a "
        "text-to-speech model (%(default)s)",
        flag="--voice", default=DRAWN, metavar="NAME|FILE|DIR", first=True,
    )  # fmt: skip
    engine: str | None = option(
        "the model that says a --voice of a file (default: that which the file was made with)",
        flag="--engine", default=None, metavar="DIR",
    )  # fmt: skip
    prompt: str = option(
        "the scene in words: text, or on the command line a file that ends in .txt",
        flag="--prompt", default="", metavar="TEXT|FILE.txt", first=True,
    )  # fmt: skip
    enhance: str | None = option(
        "a text model that first rewrites --prompt and --scene in words that the weights know",
        flag="--enhance", default=None, metavar="DIR",
    )  # fmt: skip
    image: str | None = option(
        "first frame, instead of the reference's best one",
        flag="--image", default=None, metavar="FILE", first=True,
    )  # fmt: skip
    from_prompt: bool = option(
        "no first frame is given: it is made from --prompt and reference",
        flag="--from-prompt", default=False, first=True,
    )  # fmt: skip
    scene: str | None = option(
        "no first frame is given: the best of several that are made in this scene",
        flag="--scene", default=None, metavar="TEXT|FILE.txt", first=True,
    )  # fmt: skip
    num_candidates: Annotated[int, Within(1, 64)] = option(
        "pictures that are made for --scene (%(default)s)",
        flag="--candidates", default=8, metavar="N",
    )  # fmt: skip
    face_crop: bool = option(
        "take the picture's centre square, for a picture in which no face is found",
        flag="--no-face-crop", default=True,
    )  # fmt: skip
    also: tuple[str, ...] = option(
        "more clips of the person; repeatable", flag="--also", default=(), metavar="FILE"
    )
    consent: tuple[str, ...] = option(
        "refuse people other than those of these records of consent (`avatar-v consent`), files or "
        "folders; repeatable",
        flag="--consent", default=(), metavar="FILE|DIR",
    )  # fmt: skip
    reference_s: Annotated[float, Within(0, 300)] = option(
        "seconds read of each clip (%(default)s); 0: one picture",
        flag="--reference-seconds", default=16.0, metavar="S",
    )  # fmt: skip
    motion: str = option(
        "what reads motion: auto, meter, landmarks, reader, none, a.b:c (%(default)s)",
        flag="--motion", default="auto", metavar="NAME",
    )  # fmt: skip
    gain_db: Annotated[float, Within(-60, 60)] | None = option(
        "gain of the speech, instead of levelling it to -23 LUFS",
        flag="--gain", default=None, metavar="DB",
    )  # fmt: skip
    audio_track: Annotated[int, Within(1, 64)] | None = option(
        "sound track of --audio, counted from 1 (default: the file's default track)",
        flag="--audio-track", default=None, metavar="N",
    )  # fmt: skip
    audio_rate_hz: Annotated[int, Within(1_000, 384_000)] = option(
        "sample rate of the PCM on stdin (%(default)s)",
        flag="--audio-rate", default=16_000, metavar="HZ",
    )  # fmt: skip
    audio_channels: Annotated[int, Within(1, 2)] = option(
        "channels of the PCM on stdin, interleaved (%(default)s)",
        flag="--audio-channels", default=1, metavar="N",
    )  # fmt: skip
    audio_patience_s: Annotated[float, Within(0.001, 86_400)] = option(
        "a stdin that gives nothing for so long has ended (%(default)s)",
        flag="--audio-patience", default=30.0, metavar="S",
    )  # fmt: skip


@dataclass(frozen=True)
class SamplingOptions:
    """The way from noise to video (sampling/rollout.py)."""

    num_steps: Count | None = option(
        "denoising steps; more are slower, and measure no better at small size (default: those of "
        "a few-step student, else 4, of full size 24)",
        flag="--steps", default=None, metavar="N", first=True,
    )  # fmt: skip
    size: str | None = option(
        "of the pictures, as 832x480, or 480 for a square (default: as the weights were trained)",
        flag="--size", default=None, metavar="WxH", first=True,
    )  # fmt: skip
    seed: Annotated[int, Within(0, 2**63 - 1)] = option(
        "of the noise; another seed gives another take (%(default)s)",
        flag="--seed", default=0, metavar="N", first=True,
    )  # fmt: skip
    guidance_audio: Guidance | None = option(
        "strength of the speech; 1: none (default: what the weights' card says)",
        flag="--guidance-audio", default=None, metavar="W", first=True,
    )  # fmt: skip
    guidance_text: Guidance = option(
        "strength of the prompt; 1: none (%(default)s)",
        flag="--guidance-text", default=1.0, metavar="W",
    )  # fmt: skip
    guidance_reference: Guidance = option(
        "strength of the reference; 1: none (%(default)s)",
        flag="--guidance-reference", default=1.0, metavar="W",
    )  # fmt: skip
    guidance_motion: Guidance | None = option(
        "strength of the reference's style of motion (default: what the weights' card says)",
        flag="--guidance-motion", default=None, metavar="W",
    )  # fmt: skip
    overshoot: Annotated[float, Within(0, 1)] = option(
        "fresh noise a step; 0: none, the deterministic Euler method (%(default)s)",
        flag="--overshoot", default=0.0, metavar="C",
    )  # fmt: skip
    chunk_latents: Annotated[int, Within(3, 4096)] | None = option(
        "latent frames of a chunk; of causal weights 2 + whole blocks: fewer follow a live voice "
        "sooner (default: as the weights were trained)",
        flag="--chunk-latents", default=None, metavar="N",
    )  # fmt: skip
    look_ahead: Annotated[int, Within(0, 16)] = option(
        "latent frames of sound behind a chunk that its motion is made from; each adds 0.16 s to "
        "the delay of a live voice (%(default)s)",
        flag="--look-ahead", default=0, metavar="N",
    )  # fmt: skip
    anchor: bool | None = option(
        "later chunks also read the first frame as reference (default: as the weights were "
        "trained)",
        flag="--anchor", default=None,
    )  # fmt: skip
    sink: Sink | None = option(
        "of causal weights: the anchor stands beside the reference, or in its place (default: as "
        "they were trained)",
        flag="--sink", default=None,
    )  # fmt: skip
    history: PastKind | None = option(
        "of causal weights: a step sees the past at its own noise level, or clean (default: as "
        "they were trained)",
        flag="--history", default=None,
    )  # fmt: skip
    rolling: bool = option(
        "positions of causal weights grow with the video, away from the reference",
        flag="--no-rolling", default=True,
    )  # fmt: skip
    blend: bool = option(
        "chunks begin as they are sampled, without a transition of the coarse picture",
        flag="--no-blend", default=True,
    )  # fmt: skip
    interpolate: bool = option(
        "make the beginning of each chunk anew between its neighbours (no measured gain)",
        flag="--interpolate", default=False,
    )  # fmt: skip


@dataclass(frozen=True)
class OutputOptions:
    """The place for the video."""

    out: str | None = option(
        ".mp4, .m3u8, rtmp://… or - (stdout)",
        flag="--out", default=None, metavar="OUT", first=True, required=True,
    )  # fmt: skip
    # None: the frames go to the caller alone
    overwrite: bool = option(
        "replace OUT.mp4 and OUT.json", flag="--overwrite", default=False, first=True
    )
    resume: bool = option(
        "go on with an interrupted run of this command", flag="--resume", default=False, first=True
    )
    watermark: bool | None = option(
        "mark frames invisibly and the sound inaudibly with the id in OUT.json (the command and "
        "the page do it, Python does not, unless told)",
        flag="--watermark", default=None,
    )  # fmt: skip
    policy: str | None = option(
        "refuse words and pictures that this file of rules names (.yaml)",
        flag="--policy", default=None, metavar="FILE",
    )  # fmt: skip
    sign: str | None = option(
        "sign OUT.mp4 (C2PA) as the holder of these certificates, PEM: one's own first",
        flag="--sign", default=None, metavar="CERT.pem",
    )  # fmt: skip
    sign_key: str | None = option(
        "the private key of --sign, PEM", flag="--sign-key", default=None, metavar="KEY.pem"
    )


@dataclass(frozen=True)
class Weights:
    """Weights, and the way to run them. They are no part of a request: any can carry it out."""

    name: str | Path = option(
        "the name of shipped weights or a folder of your own (%(default)s)",
        flag="--weights", default=DEFAULT_WEIGHTS, metavar="NAME|DIR", first=True,
    )  # fmt: skip
    refiner: str | Path | None = option(
        "small_refiner or a folder: larger pictures",
        flag="--refiner", default=None, metavar="NAME|DIR", first=True,
    )  # fmt: skip
    lora: tuple[str, ...] = option(
        "an adapter of these weights (runs/NAME/adapter); SCALE 1 is as trained; repeatable",
        flag="--lora", default=(), metavar="DIR[:SCALE]", first=True,
    )  # fmt: skip
    device: str = option(
        "cpu, cuda, …; auto: a GPU where there is one (%(default)s)",
        flag="--device", default="auto", metavar="NAME", first=True,
    )  # fmt: skip
    devices: Count = option(
        "processes that make the video together, each on a GPU of its own; with causal weights at "
        "most one more than steps (%(default)s)",
        flag="--devices", default=1, metavar="N",
    )  # fmt: skip
    precision: str = option(
        "of the networks; auto: bf16 where GPU or processor has it (%(default)s)",
        flag="--precision", default="auto", choices=("auto", "fp32", "bf16"),
    )  # fmt: skip
    offload: bool = option(
        "weights in main memory, a few at a time on the GPU", flag="--offload", default=False
    )
    shard: bool = option(
        "with --devices: each keeps its part of the weights and gathers block by block",
        flag="--shard", default=False,
    )  # fmt: skip
    compile: str = option(
        "compile the blocks of the networks at their first call, which takes a minute or more; "
        "auto: where a video is long enough for it to pay; --compile alone is on (%(default)s)",
        flag="--compile", default="off", choices=("auto", "on", "off"), bare="on",
    )  # fmt: skip


@dataclass(frozen=True)
class Request:
    """All that a user asks for."""

    person: PersonOptions
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    output: OutputOptions = field(default_factory=OutputOptions)

    @classmethod
    def of(cls, **options: Any) -> "Request":
        """The request of fields by name, whichever part each is of:
        ``Request.of(reference="me.mp4", audio="talk.wav", seed=1)``. TypeError for a name that is
        no field."""
        parts = {name: kind(**values) for name, kind, values in _sorted(options)}
        return cls(**parts)

    def changed(self, **options: Any) -> "Request":
        """This request with other values of some fields, by name as in `of`."""
        parts = {
            name: dataclasses.replace(getattr(self, name), **values)
            for name, _, values in _sorted(options)
        }
        return dataclasses.replace(self, **parts)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str | Path = "request") -> "Request":
        """The request in a record (out.json). ValueError for values that are none."""
        return built(cls, values, where=where)

    def options(self) -> dict[str, Any]:
        """All fields by name; `of` makes the same request of them."""
        return {k: v for part in PARTS for k, v in vars(getattr(self, part)).items()}


PARTS: dict[str, type] = {
    "person": PersonOptions,
    "sampling": SamplingOptions,
    "output": OutputOptions,
}


def _sorted(options: Mapping[str, Any]) -> list[tuple[str, type, dict[str, Any]]]:
    """``options`` sorted into the parts of a request."""
    names = {name: {f.name for f in dataclasses.fields(kind)} for name, kind in PARTS.items()}
    unknown = sorted(set(options).difference(*names.values()))
    if unknown:
        known = ", ".join(f.name for kind in PARTS.values() for f in dataclasses.fields(kind))
        raise TypeError(f"unknown options {', '.join(unknown)}; known are {known}")
    return [
        (name, PARTS[name], {k: v for k, v in options.items() if k in names[name]})
        for name in PARTS
    ]
