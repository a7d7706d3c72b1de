"""AvatarPipeline: trained weights as one callable.

``for frame in AvatarPipeline.from_pretrained()(reference="me.mp4", audio="talk.wav")``.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from avatar_v.generate.loaded import LoadedPipeline
from avatar_v.generate.run import run
from avatar_v.generate.session import LiveSession
from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.live import Block, LiveSound
from avatar_v.request.checks import check_voice_speaks
from avatar_v.request.request import LIVE, Request, Weights
from avatar_v.weights.card import DEFAULT_WEIGHTS

Frame = UInt8[Tensor, "3 h w"]


class AvatarPipeline(LoadedPipeline):
    """Loaded networks (loaded.py) that are called with a person's files, and give frames."""

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEFAULT_WEIGHTS,
        *,
        device: str = "auto",
        precision: str = "auto",
        offload: bool = False,
        shard: bool = False,
        compile: bool | str = False,
        refiner: str | Path | None = None,
        devices: int = 1,
        lora: Sequence[str] = (),
    ) -> "AvatarPipeline":
        """The weights that ship under a name, or those of a folder, with the adapters
        ``lora`` ("DIR" or "DIR:SCALE"); on ``devices`` processes, which `close` ends.
        ``compile``: "auto" decides for each video by its own length (compiling.py).

        ValueError as of `StoredPipeline` (stored_pipeline.py) and of its ``load``.
        """
        if isinstance(compile, bool):
            compile = "on" if compile else "off"
        weights = Weights(
            name_or_path,
            refiner,
            tuple(lora),
            device,
            precision=precision,
            offload=offload,
            shard=shard,
            compile=compile,
            devices=devices,
        )
        return StoredPipeline(weights).load_as(cls)

    def session(
        self, *, reference: str | Path, most_wait_s: float | None = None, **options: Any
    ) -> LiveSession:
        """A conversation: ``session.push(samples)`` gives frames, and ``session.say(text)`` has the
        ``voice`` speak (session.py). ``most_wait_s`` is for a microphone, whose sound must not
        wait; ``options`` as of a call."""
        request = Request.of(reference=str(reference), audio=LIVE, **options)
        session = LiveSession(self, request, most_wait_s=most_wait_s)
        for text in session.warnings:
            warnings.warn(text, stacklevel=2)
        return session

    def __call__(
        self,
        *,
        reference: str | Path,
        audio: str | Path | Iterable[Block] | None = None,
        image: str | Path | None = None,
        also: Sequence[str | Path] = (),
        **options: Any,
    ) -> Iterator[Frame]:
        """Frames of ``reference``'s person speaking ``audio``, or the ``script`` among the options,
        25 a second, as they are made.

        ``options`` are further fields of a request by name: ``prompt``, ``seed``, ``num_steps`` …
        (request/request.py); TypeError for any other name. Files are read and checked before the
        first frame is asked for (ValueError). ``audio`` may be a live sound, blocks (live.Block)
        taken from in a thread: frames come before it ends; closing waits for its next block; an
        OSError ends the video there, with a warning. Oddities of the files are warnings, too.
        """
        if audio is None or isinstance(audio, (str, Path)):
            sound, name = None, None if audio is None else str(audio)
        else:
            sound, name = LiveSound(audio), LIVE
        request = Request.of(
            reference=str(reference),
            audio=name,
            image=None if image is None else str(image),
            also=tuple(map(str, also)),
            **options,
        )
        check_voice_speaks(request.person)
        making = run(request, self, sound=sound)
        for text in making.inputs.warnings:
            warnings.warn(text, stacklevel=2)

        def frames() -> Iterator[Frame]:
            with closing(iter(making)) as clips:
                for clip in clips:
                    yield from clip.frames
            for text in () if sound is None else sound.warnings:
                warnings.warn(text, stacklevel=2)

        return frames()
