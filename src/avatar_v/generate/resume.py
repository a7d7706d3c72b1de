"""What an interrupted run leaves for the next one: the latents of its whole chunks.

They lie in a hidden folder beside the output (``.out.mp4.part`` for ``out.mp4``), with what was
asked for and the mp4 as far as it is written (``video.mp4``, which plays); success removes it. A
later run of the same request reads them instead of sampling, decodes them again (at small size a
fifth of the time that making them took) and writes the video whole; an HLS stream goes on behind
its last segment. Latents are fp32, whatever the network runs in, and noise is drawn from the seed
and the chunk's number (sampling/rollout.py): the frames are bit for bit those of one run as long as
the device sums in the same order (the same machine, torch and number of threads). Of a live sound,
which cannot be had again, and of causal weights, whose keys and values are in no file, there are no
chunks, only the mp4.

A file takes its name once it is on the disk, so a kill leaves whole chunks only. They cost
4 bytes a value: 0.03 MB for a second of 64 x 64 video, 2.6 MB at Wan's 480p.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from avatar_v.base.locks import exclusive
from avatar_v.base.outside import parse_json
from avatar_v.base.paths import whole_file
from avatar_v.base.states import check_numbers
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.request.output_files import GROWING, is_file, kept_folder, num_kept
from avatar_v.request.record import versions
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.moderation import RefusedError
from avatar_v.sampling.rollout import States
from avatar_v.types import SAMPLE_RATE_HZ

OnKept = Callable[[Path, int], None]
"""Told of the folder and its number of chunks when a run ends before its video does; an mp4 as far
as it is written lies there too (output_files.GROWING)."""

FILES = ("reference", "audio", "listen", "script", "image", "also")
"""Of a request: what was read of them is compared, not their names."""
NOT_COMPARED = (
    "consent",
    "engine",
    "policy",
    "audio_rate_hz",
    "audio_channels",
    "audio_patience_s",
    "out",
    "overwrite",
    "resume",
    "sign",
    "sign_key",
)
ANEW = "start anew with --overwrite and without --resume"


class KeptError(ValueError):
    """Chunks that cannot be gone on with: damaged, or of another request, weights or version."""


class ChunkCheckpoint:
    """``with KeptChunks(…) as kept: kept.states(0, sample)``: chunks made now or found.

    ``asked`` is all that the frames depend on, by name; None is a live sound, whose chunks are not
    kept. With ``resume`` the folder's chunks are used, else they are replaced. The folder goes when
    the block ends well, the video is refused, or nothing in it is of use. On entering KeptError:
    the chunks are of another request; ValueError: another process makes them.
    """

    def __init__(
        self,
        folder: Path,
        asked: Mapping[str, Any] | None,
        *,
        resume: bool,
        on_kept: OnKept = lambda folder, num: None,
    ) -> None:
        self.folder = folder
        self.goes_on = False  # there were chunks
        self.num_found = 0
        self._asked = None if asked is None else json.loads(json.dumps(asked))
        self._resume = resume
        self._on_kept = on_kept
        self._lock = -1

    def __enter__(self) -> "ChunkCheckpoint":
        self.folder.mkdir(exist_ok=True)
        self._lock = exclusive(
            self.folder / "lock", f"{self.folder}: another process is making this video"
        )
        try:
            if self._resume and num_kept(self.folder):
                self.goes_on = True
                self._check_same()
            else:
                _empty(self.folder)
            if self._asked is not None:
                _write(self.folder / "request.json", json.dumps(self._asked, indent=2).encode())
        except BaseException:
            self._leave(remove=num_kept(self.folder) == 0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        num = num_kept(self.folder)
        is_refused = kind is not None and issubclass(kind, RefusedError)
        keeps = kind is not None and not is_refused and (num > 0 or self.growing.exists())
        self._leave(remove=not keeps)
        if keeps:
            self._on_kept(self.folder, num)

    @property
    def growing(self) -> Path:
        """Where an mp4 lies until it is whole."""
        return self.folder / GROWING

    def states(self, chunk: int, make: Callable[[], States]) -> States:
        """The states of a chunk: those found (on the CPU), or what ``make`` gives, kept from now
        on. KeptError for a damaged file, OSError for one that cannot be written."""
        found = self.found(chunk)
        return self.keep(chunk, make()) if found is None else found

    def found(self, chunk: int) -> States | None:
        """The states of a chunk that an earlier run has made. KeptError for a damaged file."""
        path = self._path(chunk)
        if self._asked is None or not path.exists():
            return None
        try:
            named = load(path.read_bytes())
            check_numbers(named, where=path)
            states = tuple(named[str(i)] for i in range(len(named)))
        except (SafetensorError, KeyError, ValueError) as error:
            raise KeptError(f"{path} is damaged ({error}); {ANEW}") from error
        self.num_found += 1
        return states

    def keep(self, chunk: int, states: States) -> States:
        """``states``, kept from now on. OSError where they cannot be written."""
        if self._asked is not None:
            named = {str(i): x.cpu().contiguous() for i, x in enumerate(states)}
            _write(self._path(chunk), save(named))
        return states

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:06d}.safetensors"

    def _leave(self, *, remove: bool) -> None:
        try:
            if remove:
                _empty(self.folder)
                (self.folder / "lock").unlink()
                self.folder.rmdir()
        finally:
            os.close(self._lock)

    def _check_same(self) -> None:
        try:
            assert self._asked is not None
            file = self.folder / "request.json"
            before = parse_json(file.read_bytes(), where=file)
        except (OSError, ValueError) as error:
            raise KeptError(f"{self.folder}: no readable request.json; {ANEW}") from error
        if different := differences(before, self._asked):
            raise KeptError(
                f"--resume: {self.folder} is of another request: {different}; repeat that one, or "
                f"{ANEW}"
            )


def keeping(
    request: Request,
    inputs: Inputs,
    on_kept: OnKept,
    made_with: Mapping[str, str] | None,
) -> AbstractContextManager[ChunkCheckpoint | None]:
    """The checkpoint that keeps the chunks of a request; None where no file is written.

    ``made_with`` is what the frames depend on besides the request: weights, precision, device.
    None: no chunks are kept, only the mp4 as far as it is written.
    """
    out = request.output.out
    if out is None or not is_file(out):
        return nullcontext()
    asked = None
    if made_with is not None and not isinstance(inputs.audio, LiveSound):
        asked = {**asked_for(request, inputs), **made_with}
    return ChunkCheckpoint(kept_folder(out), asked, resume=request.output.resume, on_kept=on_kept)


def asked_for(request: Request, inputs: Inputs) -> dict[str, Any]:
    """All in a request that frames depend on: settings by name, contents of files by digest."""
    values = request.options()
    left_out = (*FILES, *NOT_COMPARED)
    settings = {name: value for name, value in values.items() if name not in left_out}
    clips = [x for c in inputs.clips for x in (c.video, c.valid, c.audio, c.motion, c.faces)]
    assert not isinstance(inputs.audio, LiveSound), f"{LIVE} has no digest"
    return {
        **settings,
        "sound": digest(inputs.audio.split(SAMPLE_RATE_HZ)),
        "delivered sound": digest(_delivered(inputs)),
        "first picture": digest((inputs.image, inputs.motion)),
        "reference": digest(clips if inputs.stored is None else inputs.stored.tensors()),
        "heard": None if inputs.listener is None else inputs.listener.digest(),
        "habits known": [list(clip.habits_known) for clip in inputs.clips],
        **{name: versions()[name] for name in ("avatar_v", "torch")},
    }


def _delivered(inputs: Inputs) -> Iterator[Tensor]:
    """The sound that an output of several files goes on with."""
    if inputs.delivered is not None:
        yield from inputs.delivered.samples.split(SAMPLE_RATE_HZ)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The names whose values differ, with both values; "" where none does."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in names)


def digest(tensors: Iterable[Tensor | None]) -> str:
    """8 hex digits of sha256 over shapes, types and values."""
    total = hashlib.sha256()
    for x in tensors:
        total.update(b"none" if x is None else f"{tuple(x.shape)} {x.dtype}".encode())
        if x is not None:
            total.update(x.contiguous().numpy().tobytes())
    return total.hexdigest()[:8]


def _empty(folder: Path) -> None:
    """Remove all but the lock; chunks first, so that none is ever left without its request."""
    for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".safetensors"):
        if path.name != "lock":
            path.unlink()


def _write(path: Path, data: bytes) -> None:
    """The file appears whole or not at all, also when the power fails."""
    with whole_file(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
