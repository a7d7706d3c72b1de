"""The jobs of the page: weights loaded once, one video at a time, each in a folder of its own.

A job is a generator, so whoever closes it (Stop, a closed browser, the end of the app) ends the
sampling and both writers, and nothing of it is left. While it runs an HLS playlist grows in its
folder; when the video is whole the mp4 and its record stand beside it. No page is known here
(page.py); generate/run.py carries a request out.
"""

import contextlib
import dataclasses
import secrets
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from avatar_v.app.form import (
    CONSENT,
    SPEECH_TEXT,
    Limits,
    PageForm,
    checked_request,
    form_words,
)
from avatar_v.app.job_queue import LOOK_S, JobQueue
from avatar_v.app.uploads import Space
from avatar_v.engines.voice import speak_text
from avatar_v.engines.voice_file import read_voice
from avatar_v.engines.voices import DRAWN, is_drawn, is_voice_file
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.media.outputs import build_output
from avatar_v.media.writer import write_wav
from avatar_v.request.output_files import json_path
from avatar_v.request.record import Record, save_record
from avatar_v.request.request import Request
from avatar_v.safety.moderation import Moderator
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ
from avatar_v.web.visitors import Visitor
from avatar_v.weights.card import DEFAULT_WEIGHTS

LIVE = "live.m3u8"
VIDEO = "avatar.mp4"
RECORD = "avatar.json"


@dataclass(frozen=True)
class Waiting:
    """Others are served first."""

    ahead: int  # of them; 0: somebody talks


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    token: str  # of its folder; hard to guess, since it is all that a download asks for
    num_frames: int  # made so far
    total: int  # to be made
    elapsed_s: float  # since sampling began
    warnings: tuple[str, ...]  # of the library, about the files
    record: Record | None = None  # the video is whole
    frame_rate_hz: int = FRAME_RATE_HZ


class JobRunner:
    """Loads the weights; ValueError if there are none. ``root`` is a folder that this may fill.

    Requests are checked against the records in the folder ``consent``, as they lie there then, and
    against a ``policy``, where they are given.
    """

    def __init__(
        self,
        root: Path,
        *,
        weights: str | Path = DEFAULT_WEIGHTS,
        refiner: str | Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        limits: Limits | None = None,
        consent: str | None = None,
        policy: str | None = None,
        voice: str = DRAWN,
    ) -> None:
        begin = time.perf_counter()
        self.pipeline = AvatarPipeline.from_pretrained(
            weights, device=device, precision=precision, refiner=refiner
        )
        self.limits, self.voice = limits or Limits(), voice
        self._consent, self._policy = (
            None if path is None else str(Path(path).resolve()) for path in (consent, policy)
        )  # whole, since the page takes them out of messages
        self.uploads, self.jobs = root / "uploads", root / "jobs"
        for place in (self.uploads, self.jobs):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.space = Space(root, self.limits.total_mib)
        _ = self.pipeline.weights_hash  # read once, now
        self._load_s = round(time.perf_counter() - begin, 3)
        self._queue = JobQueue(self.limits.num_waiting)
        self.is_talking: Callable[[], bool] = lambda: False  # with whom videos wait (live.py)

    def make(self, form: PageForm, visitor: Visitor) -> Generator[Waiting | Progress, None, None]:
        """Check ``form`` and carry it out in its visitor's turn; the last progress has the record.

        ValueError for faults that the user can change and for a full queue, OSError if writing
        fails. After either, and when it is closed, the job's folder is gone. Only a form with a
        place in the queue is checked, so that no more files are read at once than the queue is
        long.
        """
        token = secrets.token_hex(16)
        folder = self.jobs / token
        with self._queue.ticket(visitor) as ticket:
            self.space.check()
            request = self.checked(form, folder / VIDEO)
            while (ahead := ticket.ahead()) or self.is_talking():
                yield Waiting(ahead)
                ticket.wait(LOOK_S)
            folder.mkdir()
            try:
                yield from self._made(request, token)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def checked(self, form: PageForm, out: Path | None) -> Request:
        """The request of a form, as `checked_request`, under the rules of this page."""
        consent = () if self._consent is None else (self._consent,)
        request = checked_request(form, self.limits, out)
        rules = {} if out is not None else {"voice": self.voice}  # says the texts of a conversation
        return request.changed(consent=consent, policy=self._policy, **rules)

    @property
    def is_busy(self) -> bool:
        """Whether a video is being made or waits."""
        return bool(self._queue.tickets)

    def say(self, text: str, out: Path) -> None:
        """Write the speech of a text, a wav, by the voice of this page. ValueError for what the
        voice cannot say, and for words that the policy refuses."""
        if self._policy is not None:
            Moderator(self._policy).check_texts({SPEECH_TEXT: text})
        sound, _ = speak_text(text, self.voice, seed=0)
        length_s = len(sound) / SAMPLE_RATE_HZ
        if length_s > self.limits.speech_s:
            raise ValueError(
                f"{SPEECH_TEXT} lasts {length_s:.0f} s when it is said; at most "
                f"{self.limits.speech_s:g} s are taken"
            )
        write_wav(out, sound)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Paths of this machine that the page does not tell."""
        engine = read_voice(self.voice).about.engine if is_voice_file(self.voice) else None
        own = None if is_drawn(self.voice) else self.voice
        places = (self._consent, self._policy, own, engine)
        return tuple(path for path in places if path is not None)

    def sweep(self) -> None:
        """Remove uploads and jobs that nothing was written to for ``limits.keep_s``."""
        for place in (self.uploads, self.jobs):
            for path in place.iterdir():
                with contextlib.suppress(FileNotFoundError):  # a job may end meanwhile
                    if time.time() - path.stat().st_mtime > self.limits.keep_s:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _made(self, request: Request, token: str) -> Generator[Progress, None, None]:
        beside = (build_output(str(Path(str(request.output.out)).with_name(LIVE))),)
        making = run(request, self.pipeline, beside=beside, keep=False, save=self._save)
        assert making.inputs.num_frames is not None
        warnings = tuple(form_words(text, *files_of(request)) for text in making.inputs.warnings)
        rate = self.pipeline.format.video.frame_rate_hz
        now = Progress(token, 0, making.inputs.num_frames, 0.0, warnings, frame_rate_hz=rate)
        yield now
        begin = time.perf_counter()
        with contextlib.closing(iter(making)) as clips:
            for clip in clips:
                self.space.check()
                elapsed_s = time.perf_counter() - begin
                num_frames = now.num_frames + len(clip.frames)
                now = dataclasses.replace(now, num_frames=num_frames, elapsed_s=elapsed_s)
                yield now
        elapsed_s = time.perf_counter() - begin
        yield dataclasses.replace(now, elapsed_s=elapsed_s, record=making.record)

    def _save(self, record: Record) -> Record:
        return save_public(record, load_s=self._load_s)


def save_public(record: Record, *, load_s: float | None = None) -> Record:
    """Save a record beside its video, with the names of files and not the places where they lay for
    a while, and without the name of a person: who has a picture of somebody does not learn it.
    ``load_s`` is the time that weights took that were loaded before."""
    request, timing = record.request, record.timing
    assert request.output.out is not None
    person, files = request.person, files_of(request)
    named = dataclasses.replace(
        record,
        request=request.changed(
            reference=Path(person.reference).name,
            also=tuple(Path(path).name for path in person.also),
            image=None if person.image is None else Path(person.image).name,
            audio=None if person.audio is None else Path(person.audio).name,
            out=Path(request.output.out).name,
            consent=tuple(Path(place).name for place in person.consent),
            policy=None if request.output.policy is None else Path(request.output.policy).name,
        ),
        consented=record.consented and dataclasses.replace(record.consented, person=""),
        warnings=tuple(form_words(text, *files) for text in record.warnings),
        timing=timing if load_s is None else dataclasses.replace(timing, load_s=load_s),
    )
    save_record(json_path(request.output.out), named, consent=CONSENT)
    return named


def files_of(request: Request) -> tuple[str, ...]:
    """The paths of a request's files."""
    person = request.person
    given = (person.reference, person.audio, person.image, *person.also)
    return tuple(path for path in given if path is not None)
