"""The progress bar of generating: frames, frames a second, time to the first frame; warnings."""

import time
from pathlib import Path
from types import TracebackType

from jaxtyping import UInt8
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from avatar_v.generate.inputs import GROWING, Inputs


class FrameProgress:
    """``with FrameProgress() as bar``; `carry_out` takes its ``ready``, ``frames`` and ``kept``."""

    def __init__(self, label: str = "generate") -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(label, total=None, speed="reading files")
        self._begin = self._first = 0.0
        self._num = 0
        self.warnings: tuple[str, ...] = ()

    def __enter__(self) -> "FrameProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def ready(self, inputs: Inputs) -> None:
        """The inputs are read: their length is known, and what is odd about them."""
        self.warnings = inputs.warnings
        for warning in inputs.warnings:
            self._console.print(f"warning: {warning}", style="yellow")
        self._bar.update(self._task, total=inputs.num_frames, speed="loading weights")
        self._begin = time.perf_counter()

    def frames(self, frames: UInt8[Tensor, "f 3 h w"]) -> None:
        """Some more frames are made."""
        now = time.perf_counter()
        self._first = self._first or now
        self._num += len(frames)
        speed = (
            f"{self._num / (now - self._begin):.1f} frames/s, "
            f"first after {self._first - self._begin:.1f} s"
        )
        self._bar.update(self._task, advance=len(frames), speed=speed)

    def kept(self, folder: Path, num_chunks: int) -> None:
        """The run ends early, and leaves something that plays or that the next one goes on with."""
        if (folder / GROWING).exists():
            self._console.print(f"the video so far is {folder / GROWING}", markup=False)
        if num_chunks:
            self._console.print(
                f"kept {num_chunks} chunks in {folder}; the same command with --resume goes on",
                markup=False,
            )
