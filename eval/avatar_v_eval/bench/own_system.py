"""Our own generator as a system: ``name=pipeline:WEIGHTS``."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from avatar_v.generate.pipeline import AvatarPipeline, weights_folder
from avatar_v.generate.record import hash_folder
from avatar_v.generate.writer import Mp4Writer
from avatar_v.media import read_audio
from avatar_v_eval.bench.manifest import Case, Manifest
from avatar_v_eval.bench.systems import Delivery, place


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
            return Delivery(out)
        audio = manifest.path(case, "audio")
        try:
            frames = _loaded(self.weights)(
                reference=manifest.path(case, "reference"),
                audio=audio,
                prompt=case.prompt,
                image=manifest.path(case, "image"),
                face_crop=manifest.faces == "real",
            )
            with Mp4Writer(out, read_audio(audio)) as writer:
                for frame in frames:
                    writer.write(frame[None])
        except ValueError as error:
            return Delivery(reason=f"refused: {error}")
        return Delivery(out)


@cache
def _loaded(weights: str) -> AvatarPipeline:
    return AvatarPipeline.from_pretrained(weights)
