"""A worker: weights loaded once, which make the videos of a queue one after another.

While a video is made, an HLS playlist grows in the job's folder; when it is whole, the mp4 and its
record stand beside it. A thread keeps the job: a worker that hangs in a step keeps it too, one that
dies does not. What a dead one had sampled the next one goes on from (generate/resume.py).
"""

import contextlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from avatar_v.app.jobs import LIVE, VIDEO, files_of, save_public
from avatar_v.base.locks import exclusive
from avatar_v.base.traces import span
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.media.outputs import build_output
from avatar_v.request.output_files import has_kept
from avatar_v.request.request import Request
from avatar_v.serving.asked import field_words
from avatar_v.serving.job_store import LEASE_S, Job, JobStore
from avatar_v.serving.place import worker_name

LOG = logging.getLogger("avatar_v.serving")
LOOK_S = 0.5
"""Between two looks at an empty queue."""
KEEP_S = LEASE_S / 6
"""Between two signs of life."""


class Worker:
    """Makes videos until ``stop`` is set; then the one at hand has ``grace_s`` to be whole.

    ``jobs`` is the folder of their files, shared with the server. ``consent`` and ``policy`` are
    files and folders of this machine (request/request.py).
    """

    def __init__(
        self,
        store: JobStore,
        jobs: Path,
        pipeline: AvatarPipeline,
        *,
        stop: threading.Event,
        consent: str | None = None,
        policy: str | None = None,
        grace_s: float = 60.0,
    ) -> None:
        self.store, self.jobs, self.pipeline = store, jobs, pipeline
        self.name = worker_name(os.getpid())
        self._stop, self._grace_s = stop, grace_s
        self._hidden = tuple(path for path in (consent, policy) if path is not None)
        self._given = {"consent": () if consent is None else (consent,), "policy": policy}

    def work(self) -> None:
        """Until ``stop``."""
        try:
            while not self._stop.is_set():
                self._seen()
                job = self.store.take(self.name)
                if job is None:
                    self._stop.wait(LOOK_S)
                else:
                    self._make(job)
        finally:
            self.store.gone(self.name)

    def _make(self, job: Job) -> None:
        folder = self.jobs / job.id
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = exclusive(folder / "lock", "another worker has it")
        except ValueError:  # one that was taken for dead, and is not
            self.store.give_back(job)
            self._stop.wait(KEEP_S)
            return
        try:
            with span("video", job.trace, job=job.id, seconds=job.seconds):
                self._make_alone(job, folder)
        except SQLAlchemyError:  # no fault of the job, which waits again when its lease is over
            LOG.exception("the queue does not answer")
            self._stop.wait(KEEP_S)
        finally:
            os.close(lock)

    def _make_alone(self, job: Job, folder: Path) -> None:
        request = _request(job, folder / VIDEO).changed(**self._given)
        begin = time.perf_counter()
        try:
            with self._kept(job) as is_lost:
                whole = self._frames(job, request, folder, is_lost)
        except SQLAlchemyError:
            raise
        except (ValueError, OSError) as error:
            self._fail(job, folder, field_words(str(error), *files_of(request), *self._hidden))
        except Exception:
            LOG.exception("job %s failed", job.id)
            self._fail(job, folder, "something went wrong in the program; its log says what")
        else:
            if whole is None:
                return
            self._seen(video_s=whole, work_s=time.perf_counter() - begin)
            if not self.store.end(job, "done"):
                self._remove_unless_kept(job, folder)

    def _frames(
        self, job: Job, request: Request, folder: Path, is_lost: threading.Event
    ) -> float | None:
        """The seconds of a video that is whole; None of one that was cancelled or given back."""
        for old in folder.glob("live*"):
            old.unlink()
        making = run(
            request,
            self.pipeline,
            beside=(build_output(str(folder / LIVE)),),
            save=save_public,
        )
        paths = (*files_of(request), *self._hidden)
        warnings = [field_words(text, *paths) for text in making.inputs.warnings]
        rate, num = self.pipeline.format.video.frame_rate_hz, 0
        told = {"total": making.inputs.num_frames or 0, "warnings": json.dumps(warnings)}
        end_s = float("inf")
        with contextlib.closing(iter(making)) as clips:
            for clip in clips:
                num += len(clip.frames)
                if is_lost.is_set() or not self.store.keep(job, num_frames=num, **told):
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
        self.store.seen(self.name, self.pipeline.weights_hash, **made)


def _request(job: Job, out: Path) -> Request:
    """Of a job; in a later try it goes on with what the one before has left."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in job.request.items()}
    return Request.of(**options).changed(out=str(out), watermark=True, resume=has_kept(out))
