"""A conversation: sound in packets as it is spoken, frames with their times as they are made.

A `LiveSession` is one live request (run.py) whose sound is a feed (inputs/feed.py): consent,
policy, watermark and sampling are those of every request. Its frames follow each other without a
gap, as many a second as the weights make; the sound of each comes with it. Texts are said between,
by the voice of the request (inputs/said.py). Connections are not known here (serving/live.py).
"""

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.engines.voice import VoiceEngine, find_voice
from avatar_v.engines.voices import DRAWN
from avatar_v.generate.generator import inference
from avatar_v.generate.loaded import LoadedPipeline
from avatar_v.generate.run import check_listens, run
from avatar_v.inputs.feed import FeedCounts, SoundFeed, checked_packet
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.said import Speaker, checked_said
from avatar_v.request.request import LIVE, Request
from avatar_v.request.resolve import live_delay
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.types import SAMPLES_PER_FRAME, num_frames

if TYPE_CHECKING:
    import avatar_v.media.files

MOST_READY = 16
"""Blocks of frames that wait to be taken; with more the making waits."""


@dataclass(frozen=True)
class LiveFrames:
    """Some frames of a conversation, and their sound."""

    frames: UInt8[Tensor, "f 3 h w"]
    sound: Float[Tensor, " s"]  # 640 samples a frame
    start_s: float  # of the first one, from the beginning of the conversation


class LiveSession:
    """``with pipeline.session(reference="me.mp4") as session: frames = session.push(samples)``.

    ``push`` never waits; a thread makes the frames. Or one thread pushes and interrupts, and
    another iterates, which makes the frames there: not both. ValueError for a request that cannot
    be carried out, before anything is made. ``clock`` and ``most_wait_s`` are those of `SoundFeed`;
    ``beside`` are outputs that take the frames, too; ``voice`` is the request's, where it is loaded
    already. With a clock the first chunk is silent: the person is there as soon as it is made, and
    what is pushed meanwhile is spoken behind it.
    """

    def __init__(
        self,
        pipeline: LoadedPipeline,
        request: Request,
        *,
        clock: Callable[[], float] | None = time.monotonic,
        most_wait_s: float | None = None,
        beside: "Sequence[avatar_v.media.files.Output]" = (),
        voice: VoiceEngine | None = None,
    ) -> None:
        if pipeline.ranks is not None:
            raise ValueError("a conversation is made by one process: load with devices=1")
        request = request.changed(audio=LIVE)
        delay = live_delay(request, pipeline.card, pipeline.refiner_card)
        self._pipeline = pipeline
        self._feed = SoundFeed(clock=clock, most_wait_s=most_wait_s, silent_s=delay.first_s)
        self._sound = LiveSound(self._feed, interrupt=self._feed.stop)
        self._run = run(request, pipeline, sound=self._sound, beside=beside, keep=False)
        self._run.prepare()
        self.warnings = self._run.inputs.warnings
        if voice is None:
            voice = find_voice(request.person.voice, request.person.engine)
        self._speaker = Speaker(voice, self._feed, request.sampling.seed)
        self._ready: queue.Queue[LiveFrames | None] = queue.Queue(MOST_READY)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> "LiveSession":
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    @property
    def chunk_latents(self) -> int:
        """Latents that are made at once, with the two of those before that they begin with."""
        length = self._run.request.sampling.chunk_latents
        assert length is not None, "the request is resolved"
        return length

    @property
    def counts(self) -> FeedCounts:
        """What happened to the sound on its way in."""
        return self._feed.counts

    def hear(self, samples: Tensor | np.ndarray, at: int | None = None) -> None:
        """Hand over a packet; as `SoundFeed.push`."""
        self._feed.push(samples, at)

    def listen(self, samples: Tensor | np.ndarray) -> None:
        """Hand over sound of somebody else, 16 kHz mono. The person does not say it, and
        answers to it with the head from the next block of frames on: as the motion network has
        learned it (`MotionNetConfig.hears`), else with nods behind its phrases. ValueError as
        `check_listens`, and for anything but float samples in a row."""
        self.check_listens()
        samples = checked_packet(samples)
        listener = self._run.inputs.listener
        assert listener is not None, "a live request has one"
        listener.push(samples)

    def check_listens(self) -> None:
        """ValueError for weights that make no motion, and for a conversation with ``--listen``,
        which has the sound of the other side already."""
        if self._run.request.person.listen is not None:
            raise ValueError("this conversation listens to a file")
        check_listens(self._run.inputs, self._pipeline)

    def push(self, samples: Tensor | np.ndarray, at: int | None = None) -> list[LiveFrames]:
        """Hand over a packet (it may be empty) and take the frames that are ready. Raises what
        their making met."""
        self.hear(samples, at)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="session", daemon=True)
            self._thread.start()
        taken: list[LiveFrames] = []
        while not self._ready.empty() and (part := self._ready.get()) is not None:
            taken.append(part)
        if self._error is not None:
            raise self._error
        return taken

    def say(self, text: str) -> "Future[float]":
        """Have the request's voice say a text, behind all that waits; at once. Speech that is
        pushed meanwhile interrupts it, as `interrupt` does. The result is told when all its sound
        is made: its seconds; or CancelledError where it was interrupted, ValueError where the voice
        makes nothing of it. ValueError here for a text that is none, that the policy refuses, or
        that the voice cannot say; the conversation goes on."""
        self._run.check_texts({"--script": checked_said(text)})
        return self._speaker.say(text)

    def interrupt(self) -> None:
        """Drop the sound that waits to be spoken, and all texts. Of that which has been given to
        the networks, less than two blocks of frames are still to come."""
        self._feed.interrupt()

    def change_prompt(self, prompt: str) -> None:
        """Other words for the scene, from the next block of frames on. ValueError for those that
        the policy or the text encoder refuses, and with a refiner, which keeps the old ones."""
        if self._pipeline.refiner is not None:
            raise ValueError("a refiner keeps its prompt: begin another conversation")
        self._run.check_texts({"--prompt": prompt})
        with inference(self._pipeline.device, bf16=False):
            self._pipeline.conditioner.encode_text([prompt])
        self._sound.prompt = prompt

    def finish(self) -> list[LiveFrames]:
        """The rest of the frames, when all that was pushed has been spoken; closes the session."""
        self.end()
        if self._thread is None:
            return list(self)
        rest = list(iter(self._ready.get, None))
        self.close()
        if self._error is not None:
            raise self._error
        return rest

    def end(self) -> None:
        """No more packets: what waits is spoken, and then the frames end."""
        self._feed.end()

    def close(self) -> None:
        """End it now; frames that were not taken are dropped, and no thread is left."""
        self._closed.set()
        self._feed.stop()
        self._speaker.close()
        if self._thread is not None:
            while self._thread.is_alive():
                while not self._ready.empty():
                    self._ready.get()
                self._thread.join(0.05)

    def __iter__(self) -> Generator[LiveFrames, None, None]:
        """Make the frames, for as long as the session lasts. Once."""
        num, rate = 0, self._pipeline.format.video.frame_rate_hz
        try:
            with closing(iter(self._run)) as clips:
                for clip in clips:
                    yield LiveFrames(clip.frames, clip.sound, num / rate)
                    num += len(clip.frames)
                    if self._closed.is_set():
                        return
        except Exception:
            if not self._closed.is_set():  # else there may be no sound at all to make frames of
                raise

    def _work(self) -> None:
        try:
            with closing(iter(self)) as made:
                for part in made:
                    self._ready.put(part)
        except BaseException as error:
            self._error = error
        if not self._closed.is_set():
            self._ready.put(None)


def measure_rate(pipeline: LoadedPipeline, request: Request, num_blocks: int = 4) -> float:
    """Seconds of video that ``pipeline`` makes of this request in a second, once it has begun: so
    many conversations it can hold at the same time. Its voice says nothing."""
    request = request.changed(voice=DRAWN, engine=None)
    with LiveSession(pipeline, request, clock=None) as session:
        length = session.chunk_latents
        first, num = num_frames(length), num_frames(length + num_blocks * (length - OVERLAP))
        session.hear(torch.zeros(num * SAMPLES_PER_FRAME))
        session.end()
        begun, num_made = time.perf_counter(), 0
        for part in session:
            num_made += len(part.frames)
            if num_made <= first:
                begun = time.perf_counter()
    made_s = (num_made - first) / pipeline.format.video.frame_rate_hz
    return made_s / (time.perf_counter() - begun)
