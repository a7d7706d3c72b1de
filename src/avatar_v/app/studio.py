"""The studio: weights loaded once, one job at a time, each in a folder of its own.

A job is a generator, so whoever closes it (Stop, a closed browser, the end of the app) ends the
sampling and both writers, and nothing of it is left. While it runs an HLS playlist grows in its
folder; when it is whole the mp4 and its record stand beside it. No page is known here (page.py).
"""

import contextlib
import dataclasses
import secrets
import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from avatar_v.app.ask import CONSENT, Ask, Limits, checked_request, page_words
from avatar_v.app.line import Line
from avatar_v.generate.inputs import Inputs, json_path, read_inputs
from avatar_v.generate.outputs import output_of
from avatar_v.generate.pipeline import AvatarPipeline, decided, record_of
from avatar_v.generate.record import Record, Timing, hash_folder, peak_rss_mib, save_record
from avatar_v.generate.writer import Writer
from avatar_v.models.weights import weights_folder
from avatar_v.types import Request

LIVE = "live.m3u8"
VIDEO = "avatar.mp4"
RECORD = "avatar.json"
LOOK_S = 0.5  # how often a job that waits is given a chance to leave the line


@dataclass(frozen=True)
class Waiting:
    """Others are served first."""

    ahead: int  # of them


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    token: str  # of its folder; hard to guess, since it is all that a download asks for
    num_frames: int  # made so far
    total: int  # to be made
    elapsed_s: float  # since sampling began
    warnings: tuple[str, ...]  # of the library, about the files
    record: Record | None = None  # the video is whole


class Studio:
    """Loads the weights; ValueError if there are none. ``root`` is a folder that this may fill."""

    def __init__(
        self,
        root: Path,
        *,
        weights: str | Path = "small",
        refiner: str | Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        limits: Limits | None = None,
    ) -> None:
        folder, begin = weights_folder(weights), time.perf_counter()
        self.pipeline = AvatarPipeline.from_pretrained(
            folder, device=device, precision=precision, refiner=refiner
        )
        self.limits = limits or Limits()
        self.uploads, self.jobs = root / "uploads", root / "jobs"
        for place in (self.uploads, self.jobs):
            place.mkdir(parents=True, exist_ok=True)
        self.weights, self._hash = str(weights), hash_folder(folder)
        self._load_s = round(time.perf_counter() - begin, 3)
        self._line = Line(self.limits.num_waiting)

    def make(self, ask: Ask) -> Generator[Waiting | Progress, None, None]:
        """Judge ``ask`` and carry it out in its turn; the last progress has the record.

        ValueError for what the user can change and for a full line, OSError if writing fails.
        After either, and when it is closed, the job's folder is gone.
        """
        token = secrets.token_hex(16)
        folder = self.jobs / token
        request = checked_request(ask, self.limits, folder / VIDEO)
        with self._line.ticket() as ticket:
            while ahead := ticket.ahead():
                yield Waiting(ahead)
                ticket.wait(LOOK_S)
            folder.mkdir()
            try:
                yield from self._made(request, token)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def sweep(self) -> None:
        """Remove uploads and jobs that nothing was written to for ``limits.keep_s``."""
        for place in (self.uploads, self.jobs):
            for path in place.iterdir():
                with contextlib.suppress(FileNotFoundError):  # a job may end meanwhile
                    if time.time() - path.stat().st_mtime > self.limits.keep_s:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _made(self, request: Request, token: str) -> Generator[Progress, None, None]:
        inputs = _named(read_inputs(request, self.pipeline.wanted), request)
        assert inputs.num_frames is not None
        request = decided(request, self.pipeline.card, inputs)
        begin, first = time.perf_counter(), None
        now = Progress(token, 0, inputs.num_frames, 0.0, inputs.warnings)
        yield now
        clips = self.pipeline.clips(inputs, request)
        live = Writer(output_of(str(Path(request.out).with_name(LIVE))))
        with live, Writer(output_of(request.out)) as whole, contextlib.closing(clips):
            for clip in clips:
                first = first or time.perf_counter()
                live.write(clip.frames, clip.sound)
                whole.write(clip.frames, clip.sound)
                elapsed_s = time.perf_counter() - begin
                now = dataclasses.replace(now, num_frames=whole.num_frames, elapsed_s=elapsed_s)
                yield now
        end = time.perf_counter()
        timing = Timing(
            load_s=self._load_s,
            first_frame_s=round((first or end) - begin, 3),
            total_s=round(end - begin, 3),
            frames_per_s=round(now.num_frames / (end - begin), 2),
            peak_rss_mib=round(peak_rss_mib(), 1),
        )
        record = self._record(request, inputs, timing)
        save_record(json_path(request.out), record, consent=CONSENT)
        yield dataclasses.replace(now, elapsed_s=end - begin, record=record)

    def _record(self, request: Request, inputs: Inputs, timing: Timing) -> Record:
        """With the names of the user's files, not the places where they lay for a while."""
        named = dataclasses.replace(
            request,
            reference=Path(request.reference).name,
            audio=Path(request.audio).name,
            out=Path(request.out).name,
        )
        return record_of(named, inputs, self.pipeline, self.weights, self._hash, timing)


def _named(inputs: Inputs, request: Request) -> Inputs:
    """``inputs`` whose warnings call the user's files by their names."""
    paths = (request.reference, request.audio)
    warnings = tuple(page_words(text, *paths) for text in inputs.warnings)
    return dataclasses.replace(inputs, warnings=warnings)
