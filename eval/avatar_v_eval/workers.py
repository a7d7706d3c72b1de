"""One function over many cases, in several processes."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch
from rich.progress import track

T = TypeVar("T")

_work: Callable[[int], Any] | None = None  # of the processes below, inherited


def mapped(fn: Callable[[int], T], num: int, note: str, num_workers: int) -> list[T]:
    """``fn`` of 0 … num - 1, in so many forked processes of one thread each: small networks gain
    more from two cases at once than from two threads."""
    global _work
    if num_workers == 1:
        return [fn(i) for i in track(range(num), note, transient=True)]
    _work = fn
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("fork")) as pool:
        return list(track(pool.map(_one, range(num)), note, total=num, transient=True))


def _one(index: int) -> Any:
    torch.set_num_threads(1)
    assert _work is not None
    return _work(index)
