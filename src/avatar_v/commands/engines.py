"""`avatar-v voice`, `speak`, `scene` and `write`: the engines alone, as `avatar-v generate` calls
them."""

import argparse
import dataclasses
import json
import os
from contextlib import closing
from pathlib import Path

from avatar_v.base.words import notice
from avatar_v.engines.voices import DRAWN, VOICE_FILE
from avatar_v.safety.key import own_key
from avatar_v.voices.shipped import DEFAULT_ENGINE
from avatar_v.weights.card import (
    DEFAULT_WEIGHTS,
    DRAWN_PEOPLE,
    read_card,
    weights_folder,
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `voice`, `speak`, `scene` and `write`."""
    _add_voice(subparsers)
    _add_speak(subparsers)
    _add_scene(subparsers)
    _add_write(subparsers)


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command."""
    commands = {"voice": _voice, "speak": _speak, "scene": _scene, "write": _write}
    return commands[args.command](args)


def _add_voice(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "voice",
        help="ten seconds of somebody in, a voice for --voice out",
        description=f"Writes OUT{VOICE_FILE}: the recording and its words, for `--voice` of "
        "`speak` and `generate`. It is for the model in --engine alone, and holds a vector of the "
        "voice, which is biometric data.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recording", metavar="FILE", help="3 to 30 s of one person's speech: any file with sound")
    add("--transcript", required=True, metavar="TEXT|FILE.txt", help="the words in it")
    add("--engine", default=DEFAULT_ENGINE, metavar="NAME|DIR", help="a model that clones: CSM, "
        "Dia, Higgs Audio, Pocket TTS, or your own (%(default)s, which ships)")  # fmt: skip
    add("--out", required=True, metavar=f"OUT{VOICE_FILE}", help="the voice")
    add("--consent", action="append", default=[], metavar="FILE|DIR",
        help="refuse voices other than those of these records of consent; repeatable")  # fmt: skip
    add("--overwrite", action="store_true", help="replace OUT")


def _add_speak(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "speak",
        help="a script in, its speech as a .wav out",
        description="Writes OUT.wav (16 kHz, mono), the speech that `avatar-v generate` makes of "
        "the same script, voice and seed, with a mark in it as that of videos.",
        allow_abbrev=False,
    )
    voices = "drawn, drawn:N, a file of `avatar-v voice`, or a folder with a text-to-speech model "
    add = parser.add_argument
    add("--script", required=True, metavar="TEXT|FILE.txt", help="what is to be said")
    add("--out", required=True, metavar="OUT.wav", help="the sound file")
    add("--voice", default=DRAWN, metavar="NAME|FILE|DIR", help=f"{voices}(%(default)s)")
    add("--engine", metavar="DIR", help="the model that says a --voice of a file (default: that "
        "which the file was made with)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="another seed gives another take")
    add("--no-watermark", action="store_true", help="leave the inaudible mark out")
    add("--overwrite", action="store_true", help="replace OUT.wav")


def _add_scene(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "scene",
        help="a person and a scene in words in, pictures of the person there out",
        description="Writes OUT.png, the best of the candidates, for `avatar-v generate --image`; "
        "and all of them side by side, the best on the left, in OUT.candidates.png.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--reference", required=True, metavar="FILE", help="video or picture of the person")
    add("--prompt", required=True, metavar="TEXT|FILE.txt", help="the scene in words")
    add("--out", required=True, metavar="OUT.png", help="the picture")
    add("--candidates", type=int, default=8, metavar="N", help="how many are made (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="another seed gives other candidates")
    add("--no-face-crop", action="store_true", help="take the picture's centre square, for a "
        "picture in which no face is found")  # fmt: skip
    add("--weights", default=DEFAULT_WEIGHTS, metavar="NAME|DIR", help="shipped or own")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, … (%(default)s)")
    add("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="(%(default)s)")
    add("--overwrite", action="store_true", help="replace OUT.png and OUT.candidates.png")


def _add_write(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "write",
        help="an idea in, a script and a scene out, by a text model of yours",
        description="Writes OUT.txt, a script for --script of `avatar-v generate`, OUT.scene.txt, "
        "a scene for --prompt or --scene, and OUT.json, what they were made of. Read and change "
        "them first.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--idea", required=True, metavar="TEXT|FILE.txt", help="what the video is about")
    add("--text-model", required=True, metavar="DIR", help="a language model that chats")
    add("--out", required=True, metavar="OUT.txt", help="the script")
    add("--seconds", type=float, default=20.0, metavar="S", help="of speech, about (%(default)s)")
    add("--voice", default=DRAWN, metavar="NAME|FILE|DIR", help="which is to say it (%(default)s)")
    add("--weights", default=DEFAULT_WEIGHTS, metavar="NAME|DIR", help="which are to make the "
        "scene (%(default)s)")  # fmt: skip
    add("--policy", metavar="FILE", help="refuse words that this .yaml names")
    add("--seed", type=int, default=0, metavar="N", help="another seed gives other words")
    add("--overwrite", action="store_true", help="replace the files")


def _voice(args: argparse.Namespace) -> int:
    (out,) = checked_places(args, VOICE_FILE)
    from avatar_v.engines.checks import check_engine
    from avatar_v.engines.script import read_script

    transcript = read_script(args.transcript)
    check_engine(args.engine)
    from avatar_v.engines.voice_file import save_voice
    from avatar_v.inputs.voice_recording import record_voice

    voice, notes = record_voice(
        args.recording, transcript=transcript, engine=args.engine, consent=args.consent
    )
    save_voice(out, voice)
    for note in notes:
        notice(f"warning: {note}")
    about = voice.about
    whose = "nobody was asked" if about.person is None else f"{about.person} agrees"
    print(f"{out}: {len(voice.sound) / about.rate_hz:.1f} s for {about.engine}; {whose}")
    return 0


def _speak(args: argparse.Namespace) -> int:
    (out,) = checked_places(args, ".wav")
    own_key()
    check_seed(args.seed)
    from avatar_v.engines.checks import check_script

    check_script(args.script, args.voice, args.engine)
    from avatar_v.engines.voice import speak_script
    from avatar_v.media.writer import write_wav
    from avatar_v.types import SAMPLE_RATE_HZ

    sound, said = speak_script(args.script, args.voice, seed=args.seed, engine=args.engine)
    marked = ""
    if not args.no_watermark:
        from avatar_v.safety.sound_mark import SoundMarker
        from avatar_v.safety.watermark import Mark, id_of

        mark = Mark(id_of(dataclasses.asdict(said)), own_key())
        sound, marked = SoundMarker(mark, SAMPLE_RATE_HZ)(sound[None])[0], f", mark {mark.id}"
    write_wav(out, sound)
    length_s = len(sound) / SAMPLE_RATE_HZ
    print(f"{out}: {length_s:.1f} s, voice {said.voice}, seed {said.seed}{marked}")
    return 0


def _scene(args: argparse.Namespace) -> int:
    out, sheet = checked_places(args, ".png", ".candidates.png")
    from avatar_v.engines.script import read_words
    from avatar_v.request.checks import check_request
    from avatar_v.request.request import LIVE, Request, Weights

    request = Request.of(
        reference=args.reference, audio=LIVE, scene=read_words(args.prompt),
        num_candidates=args.candidates, seed=args.seed, face_crop=not args.no_face_crop,
    )  # fmt: skip
    check_request(request)
    from avatar_v.generate.scene import SceneMaker, save_picture, side_by_side

    weights = Weights(args.weights, device=args.device, precision=args.precision)
    with closing(SceneMaker(weights)) as make:
        scene = make(request)
    save_picture(out, scene.pictures[0])
    save_picture(sheet, side_by_side(scene.pictures))
    likeness = ", ".join(f"{one.likeness:.3f}" for one in scene.candidates)
    print(f"{out}: the best of {len(scene.candidates)} (likeness {likeness}); all: {sheet}")
    return 0


def _write(args: argparse.Namespace) -> int:
    out, scene, record = checked_places(args, ".txt", ".scene.txt", ".json")
    check_seed(args.seed)
    from avatar_v.engines.checks import check_text_model, check_voice
    from avatar_v.engines.script import SPOKEN_PER_S, read_words

    idea = read_words(args.idea)
    check_voice(args.voice)
    check_text_model(args.text_model, f"--text-model {args.text_model}")
    card = read_card(weights_folder(args.weights))
    from avatar_v.base.paths import whole_file
    from avatar_v.engines.writing import check_idea, draft_script
    from avatar_v.safety.moderation import Moderator

    check_idea(idea, args.seconds)
    moderator = None if args.policy is None else Moderator(args.policy)
    if moderator is not None:
        moderator.check_texts({"--idea": idea})
    written = draft_script(
        idea, args.text_model, seconds=args.seconds, voice=args.voice,
        drawn=card.can.people == DRAWN_PEOPLE, seed=args.seed,
    )  # fmt: skip
    if moderator is not None:
        moderator.check_texts({f"the {name}": text for name, text in written.texts.items()})
    about = json.dumps(dataclasses.asdict(written), indent=2, ensure_ascii=False)
    texts = (written.texts["script"], written.texts["scene"], about)
    for path, text in zip((out, scene, record), texts, strict=True):
        with whole_file(path) as part:
            part.write_text(f"{text}\n", encoding="utf-8")
    length_s = len(written.texts["script"]) / SPOKEN_PER_S
    print(f"{out}: about {length_s:.0f} s; scene: {scene}; both may be changed, and are then: "
          f"avatar-v generate --script {out} --prompt {scene}")  # fmt: skip
    return 0


def check_seed(seed: int) -> None:
    """ValueError for one that is out of its range."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed is a whole number from 0 to {2**63 - 1}, got {seed}")


def checked_places(args: argparse.Namespace, suffix: str, *more: str) -> list[Path]:
    """--out, and the files beside it that have other suffixes. ValueError unless they can be
    written."""
    out = Path(args.out)
    if out.suffix.lower() != suffix:
        raise ValueError(f"--out names a {suffix} file, got {args.out!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    places = [out, *(out.with_suffix(other) for other in more)]
    for place in places:
        if place.is_dir():
            raise ValueError(f"{place} is a folder; --out names a file")
        if os.path.lexists(place) and not args.overwrite:
            raise ValueError(f"{place} exists; pass --overwrite to replace it")
    return places
