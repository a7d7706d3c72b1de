"""Our own generator as a system: ``name=pipeline:WEIGHTS``."""

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from avatar_v.generate.pipeline import AvatarPipeline, weights_folder
from avatar_v.generate.record import hash_folder
from avatar_v.generate.writer import Mp4Writer
from avatar_v.media import read_audio
from avatar_v.types import FRAME_RATE_HZ, num_frames
from avatar_v_eval.bench.manifest import Case, Manifest
from avatar_v_eval.bench.systems import Delivery, place
from avatar_v_eval.bench.timing import Timing, machine, reported, write_timing

COUNTED = "files read and frames made, weights loaded; TTFF: also the first chunk's sound"


@dataclass(frozen=True)
class Pipeline:
    """Our generator with the weights of a name or folder, at its own defaults."""

    name: str
    weights: str
    videos: Path
    makes: bool = True

    @property
    def source(self) -> str:
        return f"pipeline:{self.weights}:{hash_folder(weights_folder(self.weights))}"

    def deliver(self, manifest: Manifest, case: Case) -> Delivery:
        """Input that the generator does not take is a reason; faces are cropped in real video."""
        out = place(self.videos, self.source, manifest, case)
        if out.is_file():
            return Delivery(out, timing=reported(out))
        audio, pipeline = manifest.path(case, "audio"), _loaded(self.weights)
        begin, first_s, num_made = time.perf_counter(), 0.0, 0
        try:
            frames = pipeline(
                reference=manifest.path(case, "reference"),
                audio=audio,
                prompt=case.prompt,
                image=manifest.path(case, "image"),
                face_crop=manifest.faces == "real",
            )
            with Mp4Writer(out, read_audio(audio)) as writer:
                for frame in frames:
                    first_s = first_s or time.perf_counter() - begin
                    writer.write(frame[None])
                    num_made += 1
        except ValueError as error:
            return Delivery(reason=f"refused: {error}")
        total_s = time.perf_counter() - begin
        waited = min(num_made, _first_chunk(pipeline)) / FRAME_RATE_HZ
        timing = Timing(round(total_s, 4), machine(), round(waited + first_s, 4), COUNTED)
        return Delivery(out, timing=write_timing(out, timing))


def _first_chunk(pipeline: AvatarPipeline) -> int:
    """Frames whose sound has to be there before the first one can be made."""
    return num_frames(pipeline.format.chunk_latents)


@cache
def _loaded(weights: str) -> AvatarPipeline:
    return AvatarPipeline.from_pretrained(weights)
