"""The making of one video: the stages of its job on this rank.

loaded.py holds the networks. Here they become stages (generator.py, refine.py), one inside the
other or each in a thread (pipelining.py), which rank 0 leads the other ranks through (ranks.py).
"""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avatar_v.generate.generator import (
    AudioChunk,
    Chunks,
    Clip,
    LatentChunk,
    audio_chunks,
    context_latents,
    decode_chunks,
    finished_chunks,
    heard_tokens,
    inference,
    live_audio_chunks,
    look_ahead_latents,
    sample_chunks,
)
from avatar_v.generate.pipelining import Stage, chained, pipelined
from avatar_v.generate.ranks import Ranks, SharedChunks
from avatar_v.generate.refine import TrainedRefiner, refining
from avatar_v.generate.resume import ChunkCheckpoint
from avatar_v.inputs.live import LiveSound, sound_chunks
from avatar_v.inputs.person import EncodedPerson
from avatar_v.media.sound import Sound, high_passed, measure_level
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.motion.listening import Listener
from avatar_v.parallel.timestep import PipelineGroup, Stopped
from avatar_v.request.request import Request
from avatar_v.request.resolve import Sizes
from avatar_v.sampling.chunks import Span, plan
from avatar_v.sampling.settings import Settings
from avatar_v.types import SAMPLES_PER_FRAME

CPU = torch.device("cpu")


@dataclass(frozen=True)
class GenerationTask:
    """A video that is to be made, apart from its sound. Rank 0 tells the other ranks of it."""

    request: Request  # with nothing left open (resolve.resolved)
    person: EncodedPerson
    larger: EncodedPerson | None  # the same, as a refiner reads them
    sizes: Sizes
    compiles: bool = False  # blocks are compiled

    def to(self, device: torch.device) -> "GenerationTask":
        larger = None if self.larger is None else self.larger.to(device)
        return dataclasses.replace(self, person=self.person.to(device), larger=larger)


@dataclass(frozen=True)
class RankTask:
    """A job, and what this rank does it with."""

    job: GenerationTask
    settings: Settings
    dit: AvatarDiT
    conditioner: Conditioner
    refiner: TrainedRefiner | None
    device: torch.device
    overlap: bool  # each stage has a thread
    ranks: Ranks | None
    line: (
        PipelineGroup | None
    )  # of the ranks, each with its own steps, where the weights are causal

    def clips(
        self,
        sound: Sound | LiveSound,
        kept: ChunkCheckpoint | None = None,
        listener: Listener | None = None,
    ) -> Generator[Clip, None, None]:
        """The video, on rank 0. ``kept``: chunks that need not be made (resume.py)."""
        return self._start(self._audio_chunks(sound, listener), sound, self._to_frames(kept))

    def latents(
        self, sound: Sound | LiveSound, listener: Listener | None = None
    ) -> Generator[LatentChunk, None, None]:
        """The chunks of `clips` before they are decoded, of one rank or a line of them."""
        assert self.ranks is None or self.line is not None
        return self._start(self._audio_chunks(sound, listener), sound, self._to_latents(None))

    def follow(self) -> None:
        """Take part in the video of rank 0 until it has ended there."""
        with suppress(Stopped):
            for _ in chained((), *self._to_frames(None)):
                pass
        if self.line is not None:
            self.line.end()

    def _start(
        self, chunks: Iterator[AudioChunk], sound: Sound | LiveSound, stages: tuple[Stage, ...]
    ) -> Generator[Any, None, None]:
        """Run the ``stages`` on the sound, together with the other ranks if there are some."""
        # whoever speaks is listened to all the time, and a line is fed all the time
        if isinstance(sound, LiveSound) or self.overlap or self.line is not None:
            interrupt = sound.interrupt if isinstance(sound, LiveSound) else lambda: None
            places = 1 if self.line is None else self.line.size
            made = pipelined(chunks, *stages, interrupt=interrupt, places=places)
        else:
            made = chained(chunks, *stages)
        if self.ranks is None:
            return made
        made = made if self.line is None else self.ranks.drained(made, self.line)
        return self._lead(made, self.ranks)

    def _audio_chunks(
        self, sound: Sound | LiveSound, listener: Listener | None
    ) -> Iterator[AudioChunk]:
        """With what the ``listener`` hears, where the network hears it, else with their nods."""
        net, tokens_of = self.conditioner.motion_net, None
        for part in self._spoken_chunks(sound):
            run = part.chunk.latents
            if listener is not None and net is not None and net.config.hears:
                tokens_of = tokens_of or self._heard_tokens(sound, listener)
                with inference(self.device, bf16=False):
                    heard = tokens_of(Span(run.start, run.start + part.audio.shape[1]))
                part = dataclasses.replace(part, heard=heard)
            elif listener is not None and net is not None:
                nods = listener.added(run.start, run.stop, self.conditioner.known_stats)
                part = dataclasses.replace(part, nods=nods)
            yield part

    def _heard_tokens(
        self, sound: Sound | LiveSound, listener: Listener
    ) -> Callable[[Span], Tensor]:
        """Of the ``listener`` of a video with this sound."""
        num = None
        if not isinstance(sound, LiveSound):
            frames, length = len(sound) // SAMPLES_PER_FRAME, self.settings.chunk_latents
            num = plan(frames, chunk_latents=length).num_latents
        with inference(self.device, bf16=False):
            return heard_tokens(self.conditioner, listener.sound, num)

    def _spoken_chunks(self, sound: Sound | LiveSound) -> Iterator[AudioChunk]:
        """Prepared as in training (sound.prepared), a live sound at the level of its last part; or
        at the request's gain."""
        gain_db, length = self.job.request.person.gain_db, self.settings.chunk_latents

        def gain(part: Sound) -> float:
            if gain_db is not None:
                return 10 ** (gain_db / 20)
            level = measure_level(part)
            if isinstance(sound, LiveSound):
                sound.note(level)
            return level.gain

        own, ahead = None, self.settings.look_ahead
        if self.refiner is not None:
            own = self.refiner.conditioner
        if not isinstance(sound, LiveSound):
            passed = high_passed(sound)
            how = {"prepared": passed, "gain": gain(passed), "refiner": own}
            return audio_chunks(self.conditioner, sound, length, **how, look_ahead=ahead)
        parts = sound_chunks(
            sound,
            chunk_latents=length,
            context=context_latents(self.conditioner, own),
            gain=gain,
            look_ahead=ahead + look_ahead_latents(self.conditioner, own),
        )
        return live_audio_chunks(
            self.conditioner, parts, own, look_ahead=ahead, prompt=lambda: sound.prompt
        )

    def _lead(self, made: Generator[Any, None, None], ranks: Ranks) -> Generator[Any, None, None]:
        """``made``, with the other ranks."""
        with closing(made):
            with ranks.watched():
                ranks.share(self.job.to(CPU))
                clip = next(made, None)
            while clip is not None:
                yield clip
                with ranks.watched():
                    clip = next(made, None)

    def _to_frames(self, kept: ChunkCheckpoint | None) -> tuple[Stage, ...]:
        """Sound to frames. One stage where ranks make them together: two threads would reach the
        other ranks in any order. In a line rank 0 alone decodes."""
        decoding = self.conditioner if self.refiner is None else self.refiner.conditioner
        settings, ranks, size = self.settings, self.ranks, self.job.sizes.out.size
        if ranks is None or self.line is not None:
            return (
                *self._to_latents(kept),
                lambda sampled: decode_chunks(decoding, settings, sampled, size=size),
            )
        stages = self._to_latents(SharedChunks(kept, ranks))

        def together(chunks: Iterator[AudioChunk]) -> Iterator[Clip]:
            shared = ranks.shared(chunk.to(CPU) for chunk in chunks)
            sampled = chained((chunk.to(self.device) for chunk in shared), *stages)
            with closing(sampled):
                decoder = ranks.decoder(decoding.vae)
                yield from decode_chunks(decoding, settings, sampled, decoder, size=size)

        return (together,)

    def _to_latents(self, kept: Chunks | None) -> tuple[Stage, ...]:
        """Sound to latents; in a line those that its last rank hands back to the first."""
        job, settings, line = self.job, self.settings, self.line
        prompt = job.request.person.prompt
        refined = refining(self.refiner, job.larger, job.request, settings.bf16)

        def sample(chunks: Iterator[AudioChunk]) -> Iterator[LatentChunk]:
            if line is not None:
                given = line.along(chunks, AudioChunk.tokens, AudioChunk.of_tokens)
                chunks = (c.to(self.device) for c in given)
            return sample_chunks(
                self.dit, self.conditioner, job.person, prompt, settings, chunks, kept, line
            )

        if line is None:
            return (sample, *refined)
        return (sample, functools.partial(finished_chunks, line), *refined)
