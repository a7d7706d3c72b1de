"""All that can be said of a request before torch is imported: its values, its files, its output.

A command checks this first, so that a wrong name is an error at once. The contents of the files
are inputs/inputs.py's.
"""

import os

from avatar_v.base.options import option_flag
from avatar_v.base.stored import accepted_fields, converted, shown
from avatar_v.base.video_format import VideoFormat
from avatar_v.engines.checks import check_script, check_text_model, check_voice
from avatar_v.engines.voices import DRAWN
from avatar_v.media.kinds import output_kind
from avatar_v.request.output_files import check_output
from avatar_v.request.request import (
    LIVE,
    OutputOptions,
    PersonOptions,
    Request,
    is_person_file,
)
from avatar_v.safety.consent import read_consents
from avatar_v.safety.key import own_key
from avatar_v.safety.policy import read_policy
from avatar_v.safety.provenance import check_signing

MAX_PROMPT = 10_000
"""Characters; the text encoders of most weights take less (models/text.py)."""


def check_request(request: Request) -> None:
    """ValueError for a value out of its range, an input that is no file, or an output that cannot
    be written."""
    check_settings(request)
    check_output(request)
    check_files(request.person)


def check_settings(request: Request) -> None:
    """ValueError for a field of another type or out of its range (request.py), and for options
    that exclude each other."""
    for part in (request.person, request.sampling, request.output):
        for name, hint in accepted_fields(type(part)).items():
            converted(getattr(part, name), hint, where=option_flag(type(part), name))
    person = request.person
    _check_words("--prompt", person.prompt)
    if person.scene is not None:
        _check_words("--scene", person.scene)
        _check_scene(person)
    if person.enhance is not None:
        if not (person.prompt.strip() or person.scene):
            raise ValueError("--enhance rewrites --prompt or --scene: pass one of them")
        check_text_model(person.enhance, f"--enhance {person.enhance}")
    if request.sampling.size is not None:
        VideoFormat.of(request.sampling.size)
    if person.audio is None and person.script is None:
        raise ValueError("pass the speech as --audio, or what is to be said as --script")
    if person.audio is not None and person.script is not None:
        raise ValueError("--audio is a speech, and --script has one made: pass one")
    if person.audio_track is not None and person.audio in (None, LIVE):
        raise ValueError("--audio-track is one of a file: pass the file as --audio")
    if person.audio != LIVE:
        check_voice_speaks(person)
    if person.from_prompt and person.image is not None:
        raise ValueError("--from-prompt makes the first frame, and --image gives it: pass one")
    if is_person_file(person.reference):
        _check_read_ahead(person)
    if person.consent:
        read_consents(person.consent)
    if request.output.policy is not None:
        read_policy(request.output.policy)
    check_marks(request.output)


def check_voice_speaks(person: PersonOptions) -> None:
    """ValueError for a voice without a script, which only a conversation has (`LIVE`)."""
    if person.voice != DRAWN and person.script is None:
        raise ValueError(f"--voice {person.voice} says a --script, and this request has none")
    if person.engine is not None and person.script is None:
        raise ValueError(f"--engine {person.engine} says a --script, and this request has none")


def check_marks(output: OutputOptions) -> None:
    """ValueError for a key of the watermark that is none, and for a signature that cannot be
    made."""
    if output.watermark:
        own_key()
    if output.sign is None and output.sign_key is None:
        return
    if output.sign is None or output.sign_key is None:
        raise ValueError("--sign and --sign-key go together; pass both or none")
    if output.out is None or output_kind(output.out) != "mp4":
        raise ValueError(f"--sign signs an .mp4 file, not {output.out}")
    check_signing(output.sign, output.sign_key)


def check_files(person: PersonOptions) -> None:
    """ValueError unless every input is a file that may be read, and the script one that its voice
    may say."""
    from avatar_v.media import containers

    if person.script is not None:
        check_script(person.script, person.voice, person.engine)
    elif person.audio == LIVE:
        check_voice(person.voice, person.engine)
    sound = () if person.audio == LIVE else (person.audio,)
    for path in (person.reference, *person.also, *sound, person.image, person.listen):
        if path is not None:
            os.close(containers.regular_file(path))


def _check_words(flag: str, text: str) -> None:
    if len(text) > MAX_PROMPT:
        raise ValueError(f"{flag} has at most {MAX_PROMPT:,} characters, got {len(text):,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{flag} is text in Unicode, got {shown(text)}") from error


def _check_read_ahead(person: PersonOptions) -> None:
    """A person file was read from its clips with options that it keeps."""
    default = PersonOptions(reference="")
    of_a_picture = () if person.image is not None else ("motion", "face_crop")
    for name in ("also", "reference_s", "scene", *of_a_picture):
        if getattr(person, name) != getattr(default, name):
            raise ValueError(
                f"{option_flag(PersonOptions, name)} reads the person's clips, which "
                f"{person.reference} stands for: pass a clip as --reference"
            )


def _check_scene(person: PersonOptions) -> None:
    if not (person.scene or "").strip():
        raise ValueError("--scene says the scene in words, got none")
    if person.image is not None or person.from_prompt:
        raise ValueError("--scene makes the first frame: leave --image and --from-prompt out")
