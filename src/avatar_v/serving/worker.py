"""A worker: weights loaded once, which make the videos of a queue one after another.

It is a process of `avatar-v serve`, or a thread of the page (app/server.py). While a video is made,
an HLS playlist grows in the job's folder; when it is whole, the mp4 and its record stand beside it.
A thread keeps the job: a worker that hangs in a step keeps it too, one that
dies does not. What a dead one had sampled the next one goes on from (generate/resume.py), where it
would make the same.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from avatar_v.base.locks import exclusive
from avatar_v.base.traces import span
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.resume import KeptError
from avatar_v.generate.run import run
from avatar_v.media.outputs import build_output
from avatar_v.request.output_files import has_kept, json_path
from avatar_v.request.record import Record, save_record
from avatar_v.request.request import Request
from avatar_v.serving.asked import WEIGHTS, field_words, files_of
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.job_tables import LEASE_S, Job
from avatar_v.serving.limits import BROKEN, CONSENT
from avatar_v.serving.place import LIVE, VIDEO, worker_name

LOG = logging.getLogger("avatar_v.serving")
LOOK_S = 0.5
"""Between two looks at an empty queue."""
MOST_MORE_S = 1.0
"""By which a speech may be longer than its packets: it is filled up to the next frame."""
KEEP_S = LEASE_S / 6
"""Between two signs of life."""


class Worker:
    """Makes videos until ``stop`` is set; then the one at hand has ``grace_s`` to be whole.

    ``jobs`` is the folder of their files, shared with the server. ``consent`` and ``policy`` are
    files and folders of this machine (request/request.py). Nothing is begun unless ``may_begin``;
    ``check`` raises where a video may not go on. ``words`` puts messages of the library into words
    for clients, without the paths that it is given. Of ``pipelines`` by name a request says which
    makes it, else the first does.
    """

    def __init__(
        self,
        store: JobStore,
        jobs: Path,
        pipelines: Mapping[str, AvatarPipeline],
        *,
        stop: threading.Event,
        consent: str | None = None,
        policy: str | None = None,
        grace_s: float = 60.0,
        may_begin: Callable[[], bool] = lambda: True,
        check: Callable[[], None] = lambda: None,
        words: Callable[..., str] = field_words,
    ) -> None:
        self.store, self.jobs, self._pipelines = store, jobs, pipelines
        self._hash = "+".join(pipeline.weights_hash for pipeline in pipelines.values())
        self.name, self.is_making = worker_name(os.getpid()), False
        self._stop, self._grace_s, self._seen_s = stop, grace_s, -KEEP_S
        self._may_begin, self._check, self._words = may_begin, check, words
        self._hidden = tuple(path for path in (consent, policy) if path is not None)
        self._given = {"consent": () if consent is None else (consent,), "policy": policy}

    def work(self) -> None:
        """Until ``stop``."""
        try:
            while not self._stop.is_set():
                try:
                    self._take()
                except SQLAlchemyError:  # a job waits again when its lease is over
                    LOG.exception("the queue does not answer")
                    self._stop.wait(KEEP_S)
        finally:
            with contextlib.suppress(SQLAlchemyError):  # the page's queue goes with its folder
                self.store.gone(self.name)

    def _take(self) -> None:
        if time.monotonic() > self._seen_s + KEEP_S:
            self._seen()
        job = self.store.take(self.name) if self._may_begin() else None
        if job is None:
            self._stop.wait(LOOK_S)
            return
        self.is_making = True
        try:
            self._make(job)
        finally:
            self.is_making = False

    def _make(self, job: Job) -> None:
        folder = self.jobs / job.id
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = exclusive(folder / "lock", "another worker has it")
        except ValueError:  # one that was taken for dead, and is not
            self.store.give_back(job)
            self._stop.wait(KEEP_S)
            return
        except OSError as error:  # as of a full disk
            return self._fail(job, folder, self._words(str(error), folder))
        try:
            with span("video", job.trace, job=job.id, seconds=job.seconds):
                self._make_alone(job, folder)
        finally:
            os.close(lock)

    def _make_alone(self, job: Job, folder: Path) -> None:
        options = dict(job.request)
        name = options.pop(WEIGHTS, next(iter(self._pipelines)))
        if name not in self._pipelines:  # workers of one queue may hold other sets
            return self._fail(job, folder, f"the worker that took this has no weights {name}")
        request = _request(options, folder / VIDEO).changed(**self._given)
        begin = time.perf_counter()
        try:
            with self._kept(job) as is_lost:
                try:
                    whole = self._frames(job, request, folder, is_lost, self._pipelines[name])
                except KeptError:  # of a worker of another version, precision or device
                    anew = request.changed(resume=False)
                    whole = self._frames(job, anew, folder, is_lost, self._pipelines[name])
        except SQLAlchemyError:
            raise
        except (ValueError, OSError) as error:
            text = str(error) or type(error).__name__
            self._fail(job, folder, self._words(text, folder, *files_of(request), *self._hidden))
        except Exception:
            LOG.exception("job %s failed", job.id)
            self._fail(job, folder, BROKEN)
        else:
            if whole is None:
                return
            self._seen(video_s=whole, work_s=time.perf_counter() - begin)
            if not self.store.end(job, "done"):
                self._remove_unless_kept(job, folder)

    def _frames(
        self,
        job: Job,
        request: Request,
        folder: Path,
        is_lost: threading.Event,
        pipeline: AvatarPipeline,
    ) -> float | None:
        """The seconds of a video that is whole; None of one that was cancelled or given back."""
        for old in folder.glob("live*"):
            old.unlink()
        making = run(
            request,
            pipeline,
            beside=(build_output(str(folder / LIVE)),),
            save=lambda record: save_public(record, self._words),
        )
        paths = (*files_of(request), *self._hidden)
        warnings = [self._words(text, *paths) for text in making.inputs.warnings]
        rate, num, end_s = pipeline.format.video.frame_rate_hz, 0, float("inf")
        total = making.inputs.num_frames or 0
        _check_length(request, total / rate, job.seconds)
        self.store.keep(job, total=total, warnings=json.dumps(warnings))
        with contextlib.closing(iter(making)) as clips:
            for clip in clips:
                self._check()
                num += len(clip.frames)
                if is_lost.is_set() or not self.store.keep(job, num_frames=num):
                    break
                if self._stop.is_set():
                    end_s = min(end_s, time.monotonic() + self._grace_s)
                if time.monotonic() > end_s:
                    break
            else:
                return num / rate
        if time.monotonic() > end_s:
            self.store.give_back(job)
        else:
            self._remove_unless_kept(job, folder)
        return None

    @contextlib.contextmanager
    def _kept(self, job: Job) -> Iterator[threading.Event]:
        """The job stays this worker's for as long as the context lasts; set where it does not."""
        over, is_lost = threading.Event(), threading.Event()

        def keep() -> None:
            while not over.wait(KEEP_S):
                try:
                    if not self.store.keep(job):
                        is_lost.set()
                    self._seen()
                except Exception:  # the database may be back within the lease
                    LOG.exception("no sign of life of job %s", job.id)

        thread = threading.Thread(target=keep, name="keep", daemon=True)
        thread.start()
        try:
            yield is_lost
        finally:
            over.set()
            thread.join()

    def _fail(self, job: Job, folder: Path, error: str) -> None:
        if self.store.end(job, "failed", error=error):
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_unless_kept(self, job: Job, folder: Path) -> None:
        """What a job that was cancelled meanwhile has left; another worker's files stay."""
        now = self.store.find(job.id, job.owner)
        if now is None or now.state == "cancelled":
            shutil.rmtree(folder, ignore_errors=True)

    def _seen(self, **made: float) -> None:
        self._seen_s = time.monotonic()
        self.store.seen(self.name, self._hash, **made)


def _check_length(request: Request, read_s: float, checked_s: float) -> None:
    """ValueError where more of a file is read than was there when its length was checked."""
    if request.person.audio is not None and read_s > checked_s + MOST_MORE_S:
        raise ValueError(
            f"{request.person.audio} has {read_s:.0f} s of sound; its packets promise "
            f"{checked_s:.0f} s"
        )


def _request(options: Mapping[str, Any], out: Path) -> Request:
    """With the options of a job; in a later try it goes on with what the one before has left, or
    makes anew what that one could not tell of any more."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    how = {"out": str(out), "overwrite": True, "resume": has_kept(out)}
    return Request.of(**options).changed(watermark=True, **how)


def save_public(record: Record, words: Callable[..., str] = field_words) -> Record:
    """Save a record beside its video, with the names of files and not the places where they lay for
    a while, and without the name of a person: who has a picture of somebody does not learn it."""
    request = record.request
    assert request.output.out is not None
    person, files = request.person, files_of(request)
    named = dataclasses.replace(
        record,
        request=request.changed(
            reference=Path(person.reference).name,
            also=tuple(Path(path).name for path in person.also),
            image=None if person.image is None else Path(person.image).name,
            audio=None if person.audio is None else Path(person.audio).name,
            listen=None if person.listen is None else Path(person.listen).name,
            out=Path(request.output.out).name,
            consent=tuple(Path(place).name for place in person.consent),
            policy=None if request.output.policy is None else Path(request.output.policy).name,
        ),
        consented=record.consented and dataclasses.replace(record.consented, person=""),
        warnings=tuple(words(text, *files) for text in record.warnings),
    )
    save_record(json_path(request.output.out), named, consent=CONSENT)
    return named
