"""What a system is: anything that delivers a video of a case, or says why not (systems.py)."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles


@dataclass(frozen=True)
class Delivery:
    """The video of one case, or the reason why there is none."""

    path: Path | None = None
    reason: str = ""
    timing: Path | None = None  # what is known of how long it took (scoring/timing.py)


class BenchSystem(Protocol):
    """``source`` says in words where videos come from."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery: ...


def place(
    videos: Path, source: str, manifest: BenchManifest, case: CaseFiles, suffix: str = ".mp4"
) -> Path:
    """Where a made video belongs; another source, prompt or file of the case is another place."""
    text = "\n".join([source, manifest.faces, case.fingerprint, case.prompt])
    folder = videos / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{case.id}{suffix}"
