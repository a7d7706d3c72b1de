"""A request's files, read and judged before any model is loaded.

Whatever is wrong with a file, a setting or the output's place is one ValueError that names it and
says what to do (OSError where there is no room for the sound); what is only odd (silence, a tiny
picture) is a warning that travels along. Reading itself is media.py's; which frame of the reference
shows the person is best_frame.py's.
"""

import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v import media
from avatar_v.critics.extractors import find_extractor
from avatar_v.generate.best_frame import SEARCH_S, best_frame
from avatar_v.generate.chunks import frames_of_audio
from avatar_v.generate.live import LiveSound, pcm_frames
from avatar_v.generate.outputs import STDOUT, kind_of
from avatar_v.generate.pipes import PipeReader
from avatar_v.generate.reference_clip import (
    SILENT_PEAK,
    ReferenceClip,
    check_same_person,
    read_reference,
    still,
)
from avatar_v.recording import Recording, Sound
from avatar_v.types import SAMPLES_PER_FRAME, Request

LIVE = "-"
"""As ``Request.audio``: a sound that is still being made."""
GROWING = "video.mp4"
"""In the folder of what is not whole: an mp4 as far as it is written."""
MAX_REFERENCE_S = 300.0
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Inputs:
    """What a request comes down to: one picture of the person and the sound to speak."""

    image: UInt8[Tensor, "3 side side"]  # square, at the source's resolution
    audio: Sound | LiveSound  # 16 kHz mono, 640 samples for each frame to make
    num_frames: int | None  # None: as many as a live sound turns out to have
    reference_frame: int | None  # which frame of the reference `image` is; None: `--image`, or
    # with `--from-prompt`, where `image` and `motion` begin nothing
    warnings: tuple[str, ...]
    clips: tuple[ReferenceClip, ...] = ()  # the reference, where the weights read it
    motion: Float[Tensor, " m"] | None = None  # of `image`, where the weights denoise motion


@dataclass(frozen=True)
class Wanted:
    """What some weights take of a person: the picture always, more if they were trained to."""

    side: int  # pixels of the square picture
    reference: bool  # the whole reference video
    motion: bool
    faces: bool = False  # close-ups of the face beside the reference


def read_inputs(request: Request, wanted: Wanted) -> Inputs:
    """Check the whole request, cheapest first, and read its files. ValueError for any fault."""
    check_settings(request)
    check_output(request)
    inputs = read_sources(request, wanted)
    if request.resume and not num_kept(kept_folder(request.out)):
        note = f"--resume: no chunks of {request.out} are kept, so it begins anew"
        inputs = dataclasses.replace(inputs, warnings=(note, *inputs.warnings))
    return inputs


def read_sources(request: Request, wanted: Wanted, sound: LiveSound | None = None) -> Inputs:
    """The request's files alone, for callers that write no file. ValueError for any fault.

    ``sound`` takes the place of stdin where the request is for a live one. It is not waited for.
    """
    if request.anchor and not wanted.reference:
        raise ValueError("--anchor: these weights read no reference for an anchor to join")
    if request.from_prompt and request.image is not None:
        raise ValueError("--from-prompt makes the first frame, and --image gives it: pass one")
    if request.from_prompt and not wanted.reference:
        raise ValueError("--from-prompt: these weights know a person by their first frame alone")
    if request.audio == LIVE:
        audio, num_frames, warnings = sound or _stdin(request), None, ()
    else:
        audio, warnings = read_speech(request.audio)
        num_frames = len(audio) // SAMPLES_PER_FRAME
    image, index, more = _read_picture(request, wanted)
    clips, motion = _read_person(request, wanted, image, index)
    odd = (note for clip in clips for note in clip.warnings)
    return Inputs(
        image=image,
        audio=audio,
        num_frames=num_frames,
        reference_frame=None if request.from_prompt else index,
        warnings=tuple(dict.fromkeys((*warnings, *more, *odd))),
        clips=clips,
        motion=motion,
    )


def finished(inputs: Inputs, num_frames: int) -> Inputs:
    """``inputs`` with what is known of a live sound once it has ended."""
    if not isinstance(inputs.audio, LiveSound):
        return inputs
    warnings = inputs.warnings + inputs.audio.warnings
    return dataclasses.replace(inputs, num_frames=num_frames, warnings=warnings)


def check_settings(request: Request) -> None:
    """ValueError for numbers that no sampler can use."""
    if request.num_steps < 1:
        raise ValueError(f"--steps is at least 1, got {request.num_steps}")
    if not 0 <= request.reference_s <= MAX_REFERENCE_S:
        raise ValueError(
            f"--reference-seconds is from 0 to {MAX_REFERENCE_S:.0f}, got {request.reference_s}"
        )
    find_extractor(request.motion, face_crop=request.face_crop)
    for name in ("guidance_text", "guidance_audio", "guidance_reference", "guidance_motion"):
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--{name.replace('_', '-')} is a finite number, got {value}")
    if not 0 <= request.overshoot < math.inf:
        raise ValueError(f"--overshoot is a finite number from 0, got {request.overshoot}")
    if request.gain_db is not None and not -60 <= request.gain_db <= 60:
        raise ValueError(f"--gain is from -60 to 60 dB, got {request.gain_db}")
    if not 1_000 <= request.audio_rate_hz <= 384_000:
        raise ValueError(f"--audio-rate is from 1000 to 384000 Hz, got {request.audio_rate_hz}")
    if request.audio_channels not in (1, 2):
        raise ValueError(f"--audio-channels is 1 or 2, got {request.audio_channels}")
    if not 0 < request.audio_patience_s < math.inf:
        raise ValueError(f"--audio-patience is above 0 s, got {request.audio_patience_s}")


def check_output(request: Request) -> None:
    """ValueError unless ``request.out`` and the .json beside it can be written now.

    With ``resume``, chunks that are kept tell that what lies there is of the same run. Whether a
    server answers is only known when frames go to it.
    """
    if request.resume and request.audio == LIVE:
        raise ValueError("--resume: a live sound (--audio -) is gone; pass the sound as a file")
    if not is_file(request.out):
        if request.resume:
            raise ValueError(f"--resume goes on with an .mp4 or .m3u8, not with {request.out}")
        if request.out == STDOUT and sys.stdout.isatty():
            raise ValueError("--out - writes an mp4 to stdout; pipe it into a file or a player")
        return
    out = Path(request.out)
    if out.parent.exists() and not out.parent.is_dir():
        raise ValueError(f"{out}: {out.parent} is a file, not a folder")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    for given in (request.reference, *request.also, request.audio, request.image):
        if given is not None and Path(given).resolve() == out.resolve():
            raise ValueError(f"{out} is an input of this request; choose another --out")
    folder = kept_folder(out)
    is_kept = num_kept(folder) > 0
    if is_kept and not (request.overwrite or request.resume):
        raise ValueError(
            f"{out}: an interrupted run left its chunks in {folder}; pass --resume to go on with "
            "them, or --overwrite to start anew"
        )
    if (folder / GROWING).exists() and not (is_kept or request.overwrite):
        raise ValueError(
            f"{out}: of an interrupted live video {folder / GROWING} is left; move it "
            "away, or pass --overwrite to replace it"
        )
    may_replace = request.overwrite or (request.resume and is_kept)
    for path in (out, json_path(out)):
        if path.is_dir():
            raise ValueError(f"{path} is a folder; --out names a file")
        if path.exists() and not may_replace:
            raise ValueError(f"{path} exists; pass --overwrite to replace it")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"{out}: cannot write to {out.parent} ({error.strerror})") from error


def is_file(out: str) -> bool:
    """Whether the output lies in a folder, with a record beside it. ValueError for no output."""
    return kind_of(out) in ("mp4", "hls")


def json_path(out: str | Path) -> Path:
    """Where the record of ``out`` goes: beside it, the same name with .json."""
    return Path(out).with_suffix(".json")


def kept_folder(out: str | Path) -> Path:
    """Where ``out`` and its chunks lie until it is whole (resume.py): hidden, beside it."""
    return Path(out).with_name(f".{Path(out).name}.part")


def num_kept(folder: Path) -> int:
    """Whole chunks in such a folder, which need not exist."""
    return sum(1 for _ in folder.glob("*.safetensors"))


def read_speech(path: str | Path) -> tuple[Recording, tuple[str, ...]]:
    """The sound of any audio or video file at 16 kHz, with silence up to the next whole frame.

    Also the warnings about it. ValueError: missing, unreadable, no audio stream, no samples, NaN.
    """
    peak = 0.0

    def parts() -> Iterator[Tensor]:
        nonlocal peak
        num = 0
        for part in media.iter_audio(path):
            num, peak = num + len(part), max(peak, float(part.abs().max()))
            yield part
        yield torch.zeros(frames_of_audio(num) * SAMPLES_PER_FRAME - num)

    sound = Recording(parts())
    return sound, (f"{path} is silent; the mouth will stay still",) if peak < SILENT_PEAK else ()


def _stdin(request: Request) -> LiveSound:
    if sys.stdin.isatty():
        raise ValueError("--audio - reads 16-bit PCM from stdin; pipe a sound into it")
    pipe = PipeReader(sys.stdin.fileno(), patience_s=request.audio_patience_s)
    frames = pcm_frames(
        pipe, sample_rate_hz=request.audio_rate_hz, num_channels=request.audio_channels
    )
    return LiveSound(frames, interrupt=pipe.interrupt)


def _read_person(
    request: Request, wanted: Wanted, image: Tensor, index: int | None
) -> tuple[tuple[ReferenceClip, ...], Tensor | None]:
    """The clips of the reference and the motion of ``image``, as far as the weights take them."""
    if request.also and not wanted.reference:
        raise ValueError("--also: these weights read one picture of the person, no further clips")
    if not (wanted.reference or wanted.motion):
        return (), None
    extractor = None
    if wanted.motion:
        extractor = find_extractor(request.motion, face_crop=request.face_crop)
    how = {
        "side": wanted.side,
        "face_crop": request.face_crop,
        "extractor": extractor,
        "faces": wanted.faces,
    }
    if request.reference_s == 0 or not wanted.reference:
        one = still(image, **how)
        clips, at = (one,) if wanted.reference else (), one.motion
        return clips, None if at is None else at[0]
    clips = tuple(
        read_reference(path, seconds=request.reference_s, **how)
        for path in (request.reference, *request.also)
    )
    for path, clip in zip(request.also, clips[1:], strict=True):
        check_same_person(path, clip, clips[0])
    if extractor is None or clips[0].motion is None:
        return clips, None
    if index is None or index >= clips[0].num_frames:  # `--image`, or the frames cut off 4k + 1
        at = still(image, **how).motion
        return clips, None if at is None else at[0]
    return clips, clips[0].motion[index]


def _read_picture(request: Request, wanted: Wanted) -> tuple[Tensor, int | None, tuple[str, ...]]:
    """The square picture to start from, its frame number, and warnings about it."""
    if not media.probe(request.reference).has_video:
        raise ValueError(f"{request.reference}: no video stream; expected a clip of the person")
    if request.image is None:
        reads = wanted.reference and request.reference_s > 0
        search_s = min(SEARCH_S, request.reference_s) if reads else SEARCH_S
        best = best_frame(request.reference, face_crop=request.face_crop, search_s=search_s)
        few = best.num_frames == 1 and Path(request.reference).suffix not in IMAGE_SUFFIXES
        notes = (f"{request.reference} has one frame; it is used as a still image",) if few else ()
        return best.image, best.index, (*notes, *best.warnings)
    still = best_frame(request.image, face_crop=request.face_crop)
    return still.image, None, still.warnings
