"""The progress bar of generating: frames, frames a second, time to the first frame; warnings."""

import time
from pathlib import Path

from jaxtyping import UInt8
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from avatar_v.base.words import counted, printable
from avatar_v.inputs.inputs import Inputs
from avatar_v.request.output_files import GROWING


class FrameProgress:
    """``with FrameProgress() as bar``; `run` and its result take its methods."""

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
        self._begin = 0.0
        self._num = 0
        self.warnings: tuple[str, ...] = ()

    def __enter__(self) -> "FrameProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._num == 0:  # nothing was made, so there is nothing to show
            self._bar.update(self._task, visible=False)
            self._bar.live.stop()  # Progress.stop ends with an empty line where stderr is a file
        else:
            self._bar.stop()

    def ready(self, inputs: Inputs) -> None:
        """The inputs are read: their length is known, and what is odd about them."""
        self.warn(inputs.warnings)
        self._bar.update(self._task, total=inputs.num_frames, speed="loading weights")
        self._begin = time.perf_counter()

    def warn(self, warnings: tuple[str, ...]) -> None:
        """Each on a line of its own, word for word: names of files hold brackets, too."""
        self.warnings += warnings
        for warning in warnings:
            self._console.print(
                printable(f"warning: {warning}"),
                style="yellow",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def say(self, words: str) -> None:
        """A line of its own."""
        self._console.print(printable(words), markup=False, highlight=False)

    def frames(self, frames: UInt8[Tensor, "f 3 h w"]) -> None:
        """Some more frames are made."""
        self._num += len(frames)
        speed = f"{self._num / (time.perf_counter() - self._begin):.1f} frames/s with loading"
        self._bar.update(self._task, advance=len(frames), speed=speed)

    def kept(self, folder: Path, num_chunks: int) -> None:
        """The run ends early, and leaves something that plays or that the next one goes on with."""
        if (folder / GROWING).exists():
            self._console.print(f"the video so far is {folder / GROWING}", markup=False)
        if num_chunks:
            self._console.print(
                f"kept {counted(num_chunks, 'chunk')} in {folder}; "
                "the same command with --resume goes on",
                markup=False,
            )
