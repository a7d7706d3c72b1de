"""The files of a video: their names, and the check that they can be written before any work.

Beside the video lie its record (.json), the speech of a script (.wav), the candidates of a scene
(.png) and, until it is whole, a hidden folder (generate/resume.py).
"""

import os
import sys
import tempfile
from pathlib import Path

from avatar_v.base.stored import shown
from avatar_v.media.kinds import STDOUT, output_kind
from avatar_v.request.request import LIVE, OutputOptions, Request

GROWING = "video.mp4"
"""In the folder of a video that is not whole: an mp4 as far as it is written."""
MAX_NAME = 200
"""Bytes of the output's name: files that are not whole yet have longer ones."""


def check_output(request: Request) -> None:
    """ValueError unless the video and the .json beside it can be written now.

    With ``resume``, chunks that are kept tell that what lies there is of the same run. Whether a
    server answers is only known when frames go to it.
    """
    from avatar_v.media import containers

    options, person = request.output, request.person
    if options.out is None:
        return
    if options.resume and person.audio == LIVE:
        raise ValueError("--resume: a live sound (--audio -) is gone; pass the sound as a file")
    if not is_file(options.out):
        if options.resume:
            raise ValueError(f"--resume goes on with an .mp4 or .m3u8, not with {options.out}")
        if options.out == STDOUT and sys.stdout.isatty():
            raise ValueError("--out - writes an mp4 to stdout; pipe it into a file or a player")
        return
    out = Path(options.out)
    if len(os.fsencode(out.name)) > MAX_NAME:
        raise ValueError(f"--out has a name of at most {MAX_NAME} bytes, got {shown(out.name)}")
    if out.parent.exists() and not out.parent.is_dir():
        raise ValueError(f"{out}: {out.parent} is a file, not a folder")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist; create it first")
    if containers.is_link_circle(out):
        raise ValueError(f"{out}: its links go in a circle; choose another --out")
    written = [out, json_path(out)]
    written += [] if person.script is None else [sound_path(out)]
    written += [] if person.scene is None else [sheet_path(out)]
    for given in (person.reference, *person.also, person.audio, person.listen, person.image):
        for path in written:
            if given is not None and os.path.realpath(given) == os.path.realpath(path):
                raise ValueError(f"{path} is an input of this request; choose another --out")
    _check_kept(out, options)
    may_replace = options.overwrite or (options.resume and has_kept(out))
    for path in written:
        if path.is_dir():
            raise ValueError(f"{path} is a folder; --out names a file")
        if os.path.lexists(path) and not may_replace:  # also a link that leads nowhere
            raise ValueError(f"{path} exists; pass --overwrite to replace it")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"{out}: cannot write to {out.parent} ({error.strerror})") from error


def _check_kept(out: Path, options: OutputOptions) -> None:
    """ValueError for remains of another run that the options neither use nor replace."""
    folder = kept_folder(out)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{out}: {folder} is in the way, which is no folder; move it away")
    is_kept = has_kept(out)
    if is_kept and not (options.overwrite or options.resume):
        raise ValueError(
            f"{out}: an interrupted run left its chunks in {folder}; pass --resume to go on with "
            "them, or --overwrite to start anew"
        )
    if (folder / GROWING).exists() and not (is_kept or options.overwrite):
        raise ValueError(
            f"{out}: of an interrupted video {folder / GROWING} is left; move it "
            "away, or pass --overwrite to replace it"
        )


def is_file(out: str | None) -> bool:
    """Whether the output lies in a folder, with a record beside it. ValueError for a name
    that is no output."""
    return out is not None and output_kind(out) in ("mp4", "hls")


def json_path(out: str | Path) -> Path:
    """Where the record of ``out`` goes: beside it, the same name with .json."""
    return Path(out).with_suffix(".json")


def sound_path(out: str | Path) -> Path:
    """Where the speech goes that was made of a script: beside ``out``, the same name with .wav."""
    return Path(out).with_suffix(".wav")


def sheet_path(out: str | Path) -> Path:
    """Where the candidates of a scene go: beside ``out``, the same name with .png."""
    return Path(out).with_suffix(".png")


def kept_folder(out: str | Path) -> Path:
    """Where ``out`` and its chunks lie until it is whole (generate/resume.py): hidden beside it."""
    return Path(out).with_name(f".{Path(out).name}.part")


def has_kept(out: str | Path | None) -> bool:
    """Whether an interrupted run has left whole chunks of ``out``."""
    return out is not None and num_kept(kept_folder(out)) > 0


def num_kept(folder: Path) -> int:
    """Whole chunks in such a folder, which need not exist."""
    return sum(1 for _ in folder.glob("*.safetensors"))
