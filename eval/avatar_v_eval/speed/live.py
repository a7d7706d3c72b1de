"""First frame, steady rate and jitter on a live sound at its own pace.

Speech is handed over in blocks of one video frame (40 ms), each at the moment its last sample would
have been spoken, to the pipeline that ``avatar-v generate --audio -`` runs, in the same threads.

Time to first frame is Live Avatar's (supplement, "Runtime Metrics"): from the arrival of the sound
to the picture, the wait for the next frame boundary, denoising and VAE decoding included. Its wait
is that for one frame, here it is that for all the sound that the first chunk is made from, so it
counts from the first sample, and the wait, which no computer shortens, is told apart. The
latency of a chunk is the time from the last sample it needs to its first frame; its percentiles are
the jitter. A sound of one frame a frame can be followed at 25 frames/s and no faster: whether
latency grows tells if it is, and the frames of a chunk over the time it keeps the stages busy tell
by what margin.

With ``--texts`` a voice speaks in place of a microphone: in a conversation by the clock each text
is said when the one before has been shown. Its times count from the moment that it is handed over.
As many conversations are begun by speech before, which begin with silent frames.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.device import PRECISIONS
from avatar_v.engines.voice import VoiceEngine, find_voice
from avatar_v.engines.voices import DRAWN
from avatar_v.generate.generator import look_ahead_latents
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.session import LiveSession
from avatar_v.inputs.feed import QUIET
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.media.sound import measure_level
from avatar_v.media.writer import Mp4Writer
from avatar_v.models.audio import frames_heard
from avatar_v.models.base import hash_folder
from avatar_v.request.request import LIVE, Request
from avatar_v.request.resolve import num_steps_of, resolve_chunk_latents
from avatar_v.sampling.chunks import Chunk, plan
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.weights.card import DEFAULT_WEIGHTS, weights_folder
from avatar_v.world.clip import WorldClip
from avatar_v.world.lexicon import sentence
from avatar_v.world.splits import sentences
from avatar_v_eval.cases import drawn_clips, rendered_video
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

CLIP_FRAMES = 101
POLL_S = 0.005
QUIET_S = 3.0
"""Of frames behind a text, until the next one is said: also a voice that is late has ended."""
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class LiveRun:
    """Seconds since the first sample was spoken."""

    spoken: np.ndarray  # when each block of a frame's sound was handed over
    shown: np.ndarray  # when each frame came
    chunks: tuple[Chunk, ...]
    look_ahead: int = 0  # latents of sound behind a chunk that it waits for

    @property
    def waits(self) -> np.ndarray:
        """When the last sample that each chunk needs was handed over."""
        needed = [frames_heard(chunk.latents.stop + self.look_ahead) for chunk in self.chunks]
        return self.spoken[np.minimum(needed, len(self.spoken)) - 1]

    @property
    def latencies(self) -> np.ndarray:
        """From a chunk's last sample to its first frame."""
        return self.shown[[chunk.frames.start for chunk in self.chunks]] - self.waits

    @property
    def margins(self) -> np.ndarray:
        """Frames a second of each whole chunk but the first, while it is worked on: from its last
        sample or the end of the chunk before to its own last frame."""
        last = self.shown[[chunk.frames.stop - 1 for chunk in self.chunks]]
        begin = np.maximum(self.waits[1:], last[:-1])
        num = np.array([len(chunk.frames) for chunk in self.chunks[1:]])
        return (num / (last[1:] - begin))[:-1]

    @property
    def rate(self) -> float:
        """Frames a second from the first chunk's last frame to that of the last whole chunk."""
        first, last = (chunk.frames.stop - 1 for chunk in (self.chunks[0], self.chunks[-2]))
        return (last - first) / (self.shown[last] - self.shown[first])

    @property
    def buffer_s(self) -> float:
        """For how long a player has to hold the first frame back so as never to stall."""
        due = self.shown[0] + np.arange(len(self.shown)) / FRAME_RATE_HZ
        return float((self.shown - due).max())


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default=DEFAULT_WEIGHTS, help="folder, or the name of shipped weights")
    add("--seconds", type=int, default=30, help="of speech in a run")
    add("--repeats", type=int, default=5, help="runs, after one that warms up")
    add("--steps", type=int, help="of the sampler (default: as generation)")
    add("--chunk-latents", type=int, help="of a chunk (default: as generation)")
    add("--look-ahead", type=int, default=0, help="latents that motion hears behind a chunk")
    add("--audio", type=float, help="audio guidance; 1 is none (default: the card's)")
    add("--motion", type=float, help="motion guidance; 1 is none (default: the card's)")
    add("--precision", default="auto", choices=PRECISIONS, help="of the networks (%(default)s)")
    add("--reference-seconds", type=float, default=4.0, help="0: one picture")
    add("--texts", type=int, default=0, help="said in a conversation by each voice, in place of it")
    add("--voices", nargs="+", default=[DRAWN], metavar="NAME|FILE|DIR", help="of --texts")


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--texts", options.texts, least=0, most=1000)
    pipeline = AvatarPipeline.from_pretrained(options.weights, precision=options.precision)
    if options.audio is None:
        options.audio = pipeline.card.guidance_audio
    if options.motion is None:
        options.motion = pipeline.card.guidance_motion
    options.steps = num_steps_of(options.steps, pipeline.card)
    if options.texts:
        how = [
            f"{options.texts} texts of two sentences in one conversation for each voice, after one "
            "that warms up, beside the making of its frames; lowest and highest are those of texts",
            "a voice is made in the processes of the frames, by the same cores",
        ]
        numbers = beginnings(pipeline, options)
        for voice in options.voices:
            numbers |= said_by(voice, pipeline, options)
    else:
        how = [
            f"{options.repeats} runs of {options.seconds} s of speech at its own pace, after a run "
            "of the same length that warms up; lowest and highest are those of the runs"
        ]
        runs = [one_run(pipeline, options) for _ in range(options.repeats + 1)][1:]
        numbers = summarise_runs(runs)
    return Findings(
        "Live speed",
        numbers,
        recipe=pipeline.card.recipe,
        weights={"pipeline": hash_folder(weights_folder(options.weights))},
        notes=[
            *how,
            f"{options.steps} steps, guidance audio {options.audio} motion {options.motion}, "
            f"{options.reference_seconds:g} s of reference video, "
            f"{'bf16' if pipeline.bf16 else 'fp32'}; frames are not encoded",
            "weights are loaded and the reference's file is read before; encoding it falls into "
            "the wait for the first chunk's sound",
        ],
    )


@contextmanager
def live_request(clip: WorldClip, options: argparse.Namespace) -> Iterator[Request]:
    """The request of a conversation with the person of a clip, while its file is there."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference.mp4"
        with Mp4Writer(path, clip.audio) as writer:
            writer.write(rendered_video(clip))
        yield Request.of(
            reference=str(path),
            audio=LIVE,
            num_steps=options.steps,
            guidance_audio=options.audio,
            guidance_motion=options.motion,
            reference_s=options.reference_seconds,
            motion="meter",
            chunk_latents=options.chunk_latents,
            look_ahead=options.look_ahead,
        )


def one_run(pipeline: AvatarPipeline, options: argparse.Namespace) -> LiveRun:
    """A session from its first sample to its last frame."""
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES, size=pipeline.format.video.size)
    num = options.seconds * FRAME_RATE_HZ
    sound = clip.audio.repeat(-(-num // CLIP_FRAMES))[: num * SAMPLES_PER_FRAME]
    spoken: list[float] = []
    shown: list[float] = []
    with live_request(clip, options) as request:
        inputs = read_inputs(
            request, pipeline.input_spec(request), LiveSound(_paced(sound, spoken))
        )
    for block in pipeline.clips(inputs, request):
        shown.extend([time.perf_counter()] * len(block.frames))
    begin, *handed = spoken
    length = resolve_chunk_latents(request, pipeline.card)
    chunks = plan(num, chunk_latents=length).chunks
    ahead = options.look_ahead + look_ahead_latents(pipeline.conditioner)
    return LiveRun(np.array(handed) - begin, np.array(shown) - begin, chunks, ahead)


def beginnings(pipeline: AvatarPipeline, options: argparse.Namespace) -> dict[str, Number]:
    """Of ``options.texts`` conversations in which somebody speaks at once; one before them warms
    up."""
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES, size=pipeline.format.video.size)
    speech = clip.audio[int((clip.audio.abs() > QUIET).nonzero()[0]) :]
    times: dict[str, list[float]] = {"picture": [], "answer": []}
    for _ in range(options.texts + 1):
        with live_request(clip, options) as request, LiveSession(pipeline, request) as session:
            begin, shown = time.perf_counter(), dict[str, float]()
            for number, packet in enumerate(speech.split(SAMPLES_PER_FRAME), 1):
                time.sleep(max(0.0, begin + number / FRAME_RATE_HZ - time.perf_counter()))
                for part in session.push(packet):
                    now = time.perf_counter() - begin
                    shown.setdefault("picture", now)
                    if float(part.sound.abs().max()) > QUIET:
                        shown.setdefault("answer", now)
        if len(shown) < len(times):
            raise ValueError("this machine is too slow: speech of four seconds was never shown")
        for key, found in times.items():
            found.append(shown[key])
    words = {
        "picture": "from the first sample of a conversation to its first picture",
        "answer": "from the first sample to the first frame with its sound",
    }
    return {
        key: median_of_repeats(found[1:]).described(f"live: {words[key]}", unit="s")
        for key, found in times.items()
    }


@dataclass
class TimedVoice:
    """A voice, and when it made its pieces."""

    voice: VoiceEngine
    begun: float = 0.0  # when the last text was handed over
    first_s: float = 0.0  # from then to its first piece
    made_s: float = 0.0  # that all its pieces took
    spoken_s: float = 0.0  # that they last

    def speak(self, text: str, *, seed: int) -> Tensor:
        return torch.cat(list(self.pieces(text, seed=seed)))

    def pieces(self, text: str, *, seed: int) -> Iterator[Tensor]:
        self.begun, self.first_s, self.made_s, self.spoken_s = time.perf_counter(), 0.0, 0.0, 0.0
        pieces = self.voice.pieces(text, seed=seed)
        self.made_s = time.perf_counter() - self.begun

        def timed() -> Iterator[Tensor]:
            begin = time.perf_counter()
            for piece in pieces:
                now = time.perf_counter()
                self.made_s += now - begin
                self.first_s = self.first_s or now - self.begun
                self.spoken_s += len(piece) / SAMPLE_RATE_HZ
                yield piece
                begin = time.perf_counter()

        return timed()


def said_by(voice: str, pipeline: AvatarPipeline, options: argparse.Namespace) -> dict[str, Number]:
    """Numbers of ``options.texts`` texts in a conversation; one before them warms up."""
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES, size=pipeline.format.video.size)
    timed, heard = TimedVoice(find_voice(voice)), list[Tensor]()
    times: dict[str, list[float]] = {"sound": [], "frame": [], "factor": []}
    with (
        live_request(clip, options) as request,
        LiveSession(pipeline, request.changed(voice=voice), voice=timed) as session,
    ):
        while not session.push(torch.zeros(0)):  # the conversation is on its way
            time.sleep(POLL_S)
        for number, speech_id in enumerate(sentences("test", options.texts + 1)):
            text = " ".join(f"{sentence(speech_id, i).text}." for i in range(2))
            future, sounds, quiet_s = session.say(text), list[Tensor](), 0.0
            while not future.done() or quiet_s < QUIET_S:
                if future.done():
                    future.result()
                time.sleep(POLL_S)
                for part in session.push(torch.zeros(0)):
                    is_quiet = float(part.sound.abs().max()) <= QUIET
                    quiet_s = quiet_s + len(part.sound) / SAMPLE_RATE_HZ if is_quiet else 0.0
                    if not sounds and not is_quiet:
                        times["frame"].append(time.perf_counter() - timed.begun)
                    if len(times["frame"]) > number:
                        sounds.append(part.sound)
            times["sound"].append(timed.first_s)
            times["factor"].append(timed.made_s / timed.spoken_s)
            heard += sounds
    name = Path(voice).stem
    words = {
        "sound": ("from a text to its first sound", "s"),
        "frame": ("from a text to the first frame with its sound", "s"),
        "factor": ("time to make its sound over the time it lasts", ""),
    }
    numbers = {
        f"{key}_{name}": median_of_repeats(values[1:]).described(
            f"live: {words[key][0]}: voice {name}", unit=words[key][1]
        )
        for key, values in times.items()
    }
    loudness = Number(measure_level(torch.cat(heard)).lufs, options.texts + 1)
    label = f"live: loudness of all that was said: voice {name}"
    return {**numbers, f"loudness_{name}": loudness.described(label, unit="LUFS")}


def _paced(sound: Tensor, spoken: list[float]) -> Iterator[Tensor]:
    """Blocks of a frame, each when it has been spoken; notes its beginning and when it handed each
    of them over."""
    begin = time.perf_counter()
    spoken.append(begin)
    for i, block in enumerate(sound.split(SAMPLES_PER_FRAME)):
        due = begin + (i + 1) / FRAME_RATE_HZ
        time.sleep(max(0.0, due - time.perf_counter()))
        spoken.append(time.perf_counter())
        yield block


def summarise_runs(runs: list[LiveRun]) -> dict[str, Number]:
    """Medians over runs, and percentiles over the chunks of all runs."""
    if min(len(run.chunks) for run in runs) < 4:
        raise ValueError("a steady rate needs at least 4 chunks a run; give --seconds more")
    later = [run.latencies[1:-1] for run in runs]  # the last chunk may be shorter
    numbers = {
        "first": median_of_repeats([float(run.shown[0]) for run in runs]).described(
            "live: time to first frame, from the first sample", unit="s"
        ),
        "first_wait": median_of_repeats([float(run.waits[0]) for run in runs]).described(
            "live: of it waiting for the first chunk's sound", unit="s"
        ),
        "first_made": median_of_repeats([float(run.latencies[0]) for run in runs]).described(
            "live: of it denoising and decoding", unit="s"
        ),
        "rate": median_of_repeats([run.rate for run in runs]).described(
            "live: frames a second, of 25 that the sound allows", unit="frames/s"
        ),
        "margin": median_of_repeats([float(np.median(run.margins)) for run in runs]).described(
            "live: frames a second while a chunk is made", unit="frames/s"
        ),
    }
    for p in PERCENTILES:
        each = [float(np.percentile(values, p)) for values in later]
        pooled = np.concatenate(later)
        numbers[f"latency_p{p}"] = Number(
            float(np.percentile(pooled, p)), len(pooled), min(each), max(each)
        ).described(f"live: latency of a chunk, percentile {p} (n: chunks)", unit="s")
    numbers["growth"] = median_of_repeats(
        [float(values[-1] - values[0]) for values in later]
    ).described("live: latency of a run's last whole chunk over its second one's", unit="s")
    numbers["buffer"] = median_of_repeats([run.buffer_s for run in runs]).described(
        "live: what a player holds back behind the first frame so as not to stall", unit="s"
    )
    return numbers
