"""A request's files, read and checked before any model is loaded.

Each fault of a file is one ValueError that names it and says what to do (OSError where there is no
room for the sound); oddities (silence, a tiny picture) are warnings that travel along.
request/checks.py comes first; files are decoded by media/reading.py, and best_frame.py chooses the
frame that shows the person.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.engines.voice import Said, speak_script
from avatar_v.inputs.best_frame import SEARCH_S, best_frame
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.person_file import StoredPerson, read_person
from avatar_v.inputs.reference_check import ReferenceChecker
from avatar_v.inputs.reference_clip import (
    ReferenceClip,
    check_same_person,
    read_reference,
    still,
)
from avatar_v.inputs.speech import live_speech, read_speech, whole_or_why
from avatar_v.media.delivered import Delivered
from avatar_v.media.sound import Sound, resampled
from avatar_v.motion.extractors import find_extractor
from avatar_v.motion.listening import Listener, listening
from avatar_v.request.checks import check_request
from avatar_v.request.output_files import has_kept
from avatar_v.request.record import ReferenceCheck, SpokenTrack
from avatar_v.request.request import LIVE, PersonOptions, Request, is_person_file
from avatar_v.request.resolve import InputSpec
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

MIN_CONTRAST = 4.0
"""Grey levels of 255, as a standard deviation. A face in flat light has 20 and more."""
MIN_BRIGHTNESS = 24.0
"""Grey levels that the brightest twentieth of the picture reaches."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".heic", ".heif", ".avif")


@dataclass(frozen=True)
class Inputs:
    """The contents of a request's files: one picture of the person and the sound to speak."""

    image: UInt8[Tensor, "3 h w"]  # of the weights' aspect, at the source's resolution
    audio: Sound | LiveSound  # mono, 640 samples for each frame to make
    num_frames: int | None  # None: as many as a live sound turns out to have
    reference_frame: int | None  # which frame of the reference `image` is; None: `--image`, or
    # with `--from-prompt` and before a scene is made, where `image` and `motion` begin nothing
    warnings: tuple[str, ...]
    clips: tuple[ReferenceClip, ...] = ()  # the reference, where the weights read it
    motion: Float[Tensor, " m"] | None = None  # of `image`, where the weights denoise motion
    check: ReferenceCheck | None = None  # do the weights know such pictures?
    said: Said | None = None  # the script that `audio` was made of
    delivered: Delivered | None = None  # the sound of the video, where it is not `audio` itself
    track: SpokenTrack | None = None  # where `audio` is of a file
    stored: StoredPerson | None = None  # a person file, in place of ``clips``
    listener: Listener | None = None  # of `--listen`, or of the other side of a conversation

    @property
    def has_reference(self) -> bool:
        """Whether more than a picture is known of the person."""
        return bool(self.clips) or (self.stored is not None and bool(self.stored.references))


def read_inputs(request: Request, spec: InputSpec, sound: LiveSound | None = None) -> Inputs:
    """Check the whole request, cheapest first, and read its files. ValueError for any fault.

    ``sound`` takes the place of stdin where the request is for a live one. Neither is waited for.
    """
    check_request(request)
    person = request.person
    find_extractor(person.motion, face_crop=person.face_crop)
    _check_fits(request, spec)
    said, spoken, warnings = None, None, ()
    rate = spec.video.frame_rate_hz
    if person.audio == LIVE:
        audio, num_frames = sound or live_speech(person), None
        audio.sample_rate_hz = rate * SAMPLES_PER_FRAME
    else:
        if person.script is not None:
            audio, said = speak_script(
                person.script, person.voice, seed=request.sampling.seed, engine=person.engine
            )
            audio = resampled(audio, SAMPLE_RATE_HZ, rate * SAMPLES_PER_FRAME)
            audio = F.pad(audio, (0, -len(audio) % SAMPLES_PER_FRAME))
        else:
            assert person.audio is not None, "check_request refuses a request without speech"
            spoken = read_speech(
                person.audio, person.audio_track, gain_db=person.gain_db, frame_rate_hz=rate
            )
            audio, warnings = spoken.audio, spoken.warnings
        num_frames = len(audio) // SAMPLES_PER_FRAME
    if request.output.resume and not has_kept(request.output.out):
        warnings = (f"--resume: no chunks of {request.output.out} are kept, so it begins anew",
                    *warnings)  # fmt: skip
    stored = read_person(person.reference) if is_person_file(person.reference) else None
    if stored is not None:
        image, index, motion, more = _read_stored(stored, person, spec)
        clips = ()
    else:
        image, index, more = _read_picture(person, spec)
        clips, motion = _read_person(person, spec, image, index)
    odd = (note for clip in clips for note in clip.warnings)
    return Inputs(
        image=image,
        audio=audio,
        num_frames=num_frames,
        reference_frame=None if makes_first_frame(person) else index,
        warnings=tuple(dict.fromkeys((*warnings, *more, *odd))),
        clips=clips,
        motion=motion,
        said=said,
        delivered=None if spoken is None else spoken.delivered,
        track=None if spoken is None else spoken.track,
        stored=stored,
        listener=_read_listener(request, rate),
    )


def _read_listener(request: Request, frame_rate_hz: int) -> Listener | None:
    """Who has heard the file of ``--listen``. Of a live request without one, who has heard nothing
    yet (session.py)."""
    from avatar_v.media import reading

    path, seed = request.person.listen, derive("listening", request.sampling.seed)
    if path is not None:
        heard = reading.iter_audio(path, sample_rate_hz=SAMPLE_RATE_HZ)
        return listening(heard, seed, frame_rate_hz)
    if request.person.audio == LIVE:
        return Listener(is_live=True, seed=seed, frame_rate_hz=frame_rate_hz)
    return None


def reference_checked(inputs: Inputs, person: PersonOptions, check: ReferenceChecker) -> Inputs:
    """``inputs`` with the result of ``check`` on the first picture and, where that is from another
    file, on the reference."""
    pictures = [(person.image or person.reference, inputs.image)]
    if person.image is not None:
        for clip in inputs.clips[:1]:
            pictures.append((person.reference, clip.video[int(clip.valid.int().argmax())]))
    result, notes = check(pictures)
    return dataclasses.replace(inputs, check=result, warnings=(*inputs.warnings, *notes))


def with_first_picture(
    inputs: Inputs, image: UInt8[Tensor, "3 h w"], person: PersonOptions, spec: InputSpec
) -> Inputs:
    """``inputs`` with another first picture, framed as those of the weights are."""
    first = still(image, **_reading_options(person, spec))
    motion = None if first.motion is None else first.motion[0]
    return dataclasses.replace(inputs, image=image, motion=motion)


def makes_first_frame(person: PersonOptions) -> bool:
    """Whether the network makes the first frame, too."""
    return person.from_prompt or person.scene is not None


def completed(inputs: Inputs, num_frames: int) -> Inputs:
    """``inputs`` with the length and the warnings of a live sound that has ended."""
    if not isinstance(inputs.audio, LiveSound):
        return inputs
    warnings = inputs.warnings + inputs.audio.warnings
    return dataclasses.replace(inputs, num_frames=num_frames, warnings=warnings)


def _check_fits(request: Request, spec: InputSpec) -> None:
    """ValueError for options that exclude each other or that the weights have no use for."""
    person = request.person
    if request.sampling.anchor and not spec.reference:
        raise ValueError("--anchor: these weights read no reference for an anchor to join")
    if makes_first_frame(person) and not spec.reference:
        flag = "--from-prompt" if person.from_prompt else "--scene"
        raise ValueError(f"{flag}: these weights know a person by their first frame alone")


def picture_notes(path: str | Path) -> tuple[str, ...]:
    """`whole_or_why`, and a warning where the colours of the pictures are converted."""
    from avatar_v.media import reading

    note = reading.colour_note(path)
    return (*whole_or_why(path), *(() if note is None else (note,)))


def picture_warnings(path: str | Path, image: UInt8[Tensor, "3 h w"]) -> tuple[str, ...]:
    """Warnings about a picture in which nobody can be seen: one colour all over, or dark."""
    step = max(1, min(image.shape[1:]) // 256)
    small = image[:, ::step, ::step].float().flatten(1)
    if float(small.std(1).max()) < MIN_CONTRAST:
        return (f"{path}: the picture of the person is of almost one colour; nobody is seen in it",)
    if float(small.amax(0).quantile(0.95)) < MIN_BRIGHTNESS:
        return (f"{path}: the picture of the person is very dark; it will hardly be recognised",)
    return ()


def _read_person(
    person: PersonOptions, spec: InputSpec, image: Tensor, index: int | None
) -> tuple[tuple[ReferenceClip, ...], Tensor | None]:
    """The clips of the reference and the motion of ``image``, as far as the weights take them."""
    if person.also and not spec.reference:
        raise ValueError("--also: these weights read one picture of the person, no further clips")
    if not (spec.reference or spec.motion):
        return (), None
    way = _reading_options(person, spec)
    how = {**way, "faces": spec.faces}
    if person.reference_s == 0 or not spec.reference:
        first = still(image, **how)
        at = None if first.motion is None else first.motion[0]
        if not spec.reference:
            return (), at
        if person.image is None:
            return (first,), at
        found = best_frame(person.reference, **way)
        return (still(found.image, **how),), at
    clips = tuple(
        read_reference(path, seconds=person.reference_s, **how)
        for path in (person.reference, *person.also)
    )
    clips = (
        clips[0],
        *(
            dataclasses.replace(clip, warnings=(*picture_notes(path), *clip.warnings))
            for path, clip in zip(person.also, clips[1:], strict=True)
        ),
    )
    for path, clip in zip(person.also, clips[1:], strict=True):
        check_same_person(path, clip, clips[0])
    if clips[0].motion is None:
        return clips, None
    if index is None or index >= clips[0].num_frames:  # `--image`, or the frames cut off 4k + 1
        at = still(image, **how).motion
        return clips, None if at is None else at[0]
    return clips, clips[0].motion[index]


def _reading_options(person: PersonOptions, spec: InputSpec) -> dict[str, Any]:
    """The format and framing of pictures, and what reads the person's motion: None where the
    weights take none."""
    framed = {"face_crop": person.face_crop, "drawn": spec.drawn}
    extractor = find_extractor(person.motion, **framed) if spec.motion else None
    return {**framed, "video": spec.video, "extractor": extractor}


def _read_stored(
    stored: StoredPerson, person: PersonOptions, spec: InputSpec
) -> tuple[Tensor, int | None, Tensor | None, tuple[str, ...]]:
    """The picture to start from, its frame number, its motion, and warnings, of a person file, or
    of another first picture of its person."""
    if person.image is None:
        return stored.image, stored.about.frame, stored.motion, stored.about.warnings
    image, index, notes = _read_picture(person, spec)
    motion = still(image, **_reading_options(person, spec)).motion
    return image, index, None if motion is None else motion[0], (*stored.about.warnings, *notes)


def _read_picture(
    person: PersonOptions, spec: InputSpec
) -> tuple[Tensor, int | None, tuple[str, ...]]:
    """The picture to start from, its frame number, and warnings about it."""
    from avatar_v.media import reading

    cut = ()
    if not is_person_file(person.reference):
        if why := reading.probe(person.reference).no_video:
            raise ValueError(f"{person.reference}: {why}; expected a clip of the person")
        cut = picture_notes(person.reference)
    way = _reading_options(person, spec)
    if person.image is None:
        reads = spec.reference and person.reference_s > 0
        search_s = min(SEARCH_S, person.reference_s) if reads else SEARCH_S
        best = best_frame(person.reference, search_s=search_s, **way)
        few = best.num_frames == 1 and Path(person.reference).suffix.lower() not in IMAGE_SUFFIXES
        notes = (f"{person.reference} has one frame; it is used as a still image",) if few else ()
        dark = picture_warnings(person.reference, best.image)
        return best.image, best.index, (*cut, *notes, *dark, *best.warnings)
    still = best_frame(person.image, **way)
    dark = picture_warnings(person.image, still.image)
    return still.image, None, (*cut, *picture_notes(person.image), *dark, *still.warnings)
