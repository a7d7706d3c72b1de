"""Where the page asks the queue: a form becomes a job, and its course is told until it is over.

A worker of serving/ makes the videos, one at a time, in a thread or elsewhere; of its job this
knows what the queue and its folder say. Whoever goes meanwhile has his job cancelled.
"""

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from avatar_v.app import html
from avatar_v.app.form import CALLED, SPEECH_TEXT, PageForm, form_values, form_words
from avatar_v.app.turns import Turns
from avatar_v.engines.voice import speak_text
from avatar_v.engines.voice_file import read_voice
from avatar_v.engines.voices import DRAWN, is_drawn, is_voice_file
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.writer import write_wav
from avatar_v.request.request import Request
from avatar_v.safety.moderation import Moderator
from avatar_v.serving.admission import Admission
from avatar_v.serving.asked import WEIGHTS, checked_options
from avatar_v.serving.clients import digest
from avatar_v.serving.job_tables import Job
from avatar_v.serving.limits import BROKEN, Limits
from avatar_v.serving.place import RECORD, Place
from avatar_v.serving.uploads import Uploads
from avatar_v.serving.worker import Worker
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.web.visitors import Visitor

MOST_OWN = 3
"""Places of one browser, of all its windows."""
LOOK_S = 0.25
"""Between two looks at a job."""
LOG = logging.getLogger("avatar_v.app")


class Desk:
    """What visitors ask of the queue of ``place``, for one of the ``pipelines``: the first where
    they choose none, and in conversations. Requests are checked against the records in the folder
    ``consent`` and a ``policy``, where they are given, and texts said by ``voice``."""

    def __init__(
        self,
        place: Place,
        pipelines: Mapping[str, AvatarPipeline],
        limits: Limits,
        *,
        consent: str | None = None,
        policy: str | None = None,
        voice: str = DRAWN,
    ) -> None:
        self.place, self.pipelines, self.limits, self.voice = place, pipelines, limits, voice
        self.pipeline = next(iter(pipelines.values()))
        self.consent, self.policy = (
            None if path is None else str(Path(path).resolve()) for path in (consent, policy)
        )  # whole, since the page takes them out of messages
        self.uploads, self.space = Uploads(place.uploads), place.space(limits.total_mib)
        self.is_ending = threading.Event()
        self.is_talking: Callable[[], bool] = lambda: False  # with whom videos wait (live_page.py)
        most = limits.num_waiting + 1
        most_house = max(MOST_OWN, (most + 1) // 2)
        shares = {"most_own": MOST_OWN, "most_house": most_house, "most": most}
        self._admission = Admission(**shares, wait_s=math.inf)
        self._checks = Turns(most, MOST_OWN, "videos")

    def options(
        self, form: PageForm, browser: str, *, is_live: bool = False
    ) -> tuple[dict[str, Any], float]:
        """As `checked_options`, for a form and the files of a browser, in the words of the page."""
        return checked_options(
            form_values(form, is_live=is_live),
            partial(self.uploads.find, browser),
            limits=self.limits,
            cards={name: one.card for name, one in self.pipelines.items()},
            is_live=is_live,
            called=CALLED,
            words=self.words,
        )

    def request(self, form: PageForm, browser: str) -> Request:
        """Of a conversation; its texts are said by the voice of this page."""
        request = Request.of(**self.options(form, browser, is_live=True)[0])
        consent = () if self.consent is None else (self.consent,)
        own = {"consent": consent, "policy": self.policy, "voice": self.voice}
        return request.changed(watermark=True, **own)

    async def states(self, form: PageForm, visitor: Visitor) -> AsyncGenerator[Mapping[str, Any]]:
        """What the page shows, from the first check to the end; closing this cancels the job."""
        try:
            async with self._checks.turn(visitor):
                options, seconds = await self._checks.done(partial(self._checked, form, visitor))
            job = self.place.store.ask(  # at once: nobody can go meanwhile and leave it behind
                digest(visitor.browser),
                options,
                seconds=seconds,
                priority=0,
                admission=self._admission,
                house=visitor.address,
            )
            async with contextlib.aclosing(self._course(job)) as states:
                async for state in states:
                    yield state
        except (ValueError, OSError) as error:
            yield html.failed(self.words(str(error) or type(error).__name__))
        except Exception:
            LOG.exception("a job failed")
            yield html.failed(BROKEN)

    async def _course(self, job: Job) -> AsyncGenerator[Mapping[str, Any]]:
        """What the page shows for a job, which is cancelled where it is not over at the end."""
        store = self.place.store
        told, before, has_screen = None, None, False
        try:
            while not self.is_ending.is_set():
                has_screen = has_screen and job.state != "waiting"  # again: its worker has died
                if job != before or job.state == "waiting":
                    state = await asyncio.to_thread(self._state, job)
                    if state is not None and job.total and not has_screen:
                        state, has_screen = {**state, "screen": html.player(job.id)}, True
                    if state is not None and state != told:
                        yield state
                        told = state
                if job.is_over:
                    return
                await asyncio.sleep(LOOK_S)
                before, found = job, await asyncio.to_thread(store.find, job.id, job.owner)
                if found is None:
                    raise ValueError("The video is not here any more")
                job = found
        finally:
            if not job.is_over:
                store.cancel(job.id, job.owner)

    def worker(self, may_begin: Callable[[], bool] = lambda: True) -> Worker:
        """Makes the videos that are asked for here, in the thread that runs its ``work``, until
        this ``is_ending``."""
        return Worker(
            self.place.store,
            self.place.jobs,
            self.pipelines,
            stop=self.is_ending,
            consent=self.consent,
            policy=self.policy,
            grace_s=0.0,
            may_begin=may_begin,
            check=self.space.check,
            words=self.words,
        )

    def find(self, id_: str, browser: str) -> Job | None:
        """A job of a browser."""
        return self.place.store.find(id_, digest(browser))

    @property
    def is_busy(self) -> bool:
        """Whether a video is being made or waits."""
        return any(state in ("waiting", "running") for state, _ in self.place.store.counts())

    def say(self, text: str, out: Path) -> None:
        """Write the speech of a text, a wav, by the voice of this page. ValueError for what the
        voice cannot say, and for words that the policy refuses."""
        if self.policy is not None:
            Moderator(self.policy).check_texts({SPEECH_TEXT: text})
        sound, _ = speak_text(text, self.voice, seed=0)
        length_s = len(sound) / SAMPLE_RATE_HZ
        if length_s > self.limits.speech_s:
            raise ValueError(
                f"{SPEECH_TEXT} lasts {length_s:.0f} s when it is said; at most "
                f"{self.limits.speech_s:g} s are taken"
            )
        write_wav(out, sound)

    def words(self, text: str, *paths: str | Path) -> str:
        """As `form_words`, without paths of this machine that the page does not tell."""
        engine = read_voice(self.voice).about.engine if is_voice_file(self.voice) else None
        own = None if is_drawn(self.voice) else self.voice
        return form_words(text, *paths, self.consent, self.policy, own, engine)

    def _checked(self, form: PageForm, visitor: Visitor) -> tuple[dict[str, Any], float]:
        self.space.check()
        return self.options(form, visitor.browser)

    def _state(self, job: Job) -> dict[str, Any] | None:
        """What the page shows for a job; None: as before."""
        pipeline = self.pipelines.get(job.request.get(WEIGHTS, ""), self.pipeline)
        rate = pipeline.format.video.frame_rate_hz
        if job.state == "waiting":
            ahead, _ = self.place.store.wait_of(job)
            return html.waiting(ahead) if ahead or self.is_talking() else None
        if job.state == "running":
            since = job.begun_s or time.time()
            return html.working(job, time.time() - since, rate) if job.total else None
        if job.state == "done":
            record = json.loads((self.place.jobs / job.id / RECORD).read_text())
            return html.done(job, record["timing"], rate)
        return html.failed(job.error or "The video was stopped")
