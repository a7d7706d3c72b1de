"""Progress bars of work that takes long, on stderr.

rich is slow to import, and its own `track` writes to stdout, an empty line where that is a file.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")


def track(items: Iterable[T], words: str, total: int | None = None) -> Iterator[T]:
    """The items in turn, with a bar that goes when they end; without one where stderr is no
    terminal. ``total``: their number, where they have no length."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    return iter(
        progress.track(
            items, words, total, console=console, transient=True, disable=not console.is_terminal
        )
    )


def results_console() -> "Console":
    """What results are printed by, on stdout, which takes no codes of colours (cli.py)."""
    from rich.console import Console

    return Console(color_system=None)


def progress_bar() -> "Progress":
    """A bar that counts clips or files and stays; its last state alone where stderr is a file."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
