"""One function over many cases, in several processes; a stopped loop goes on where it was."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from avatar_v.base import checks
from avatar_v.base.progress import track

T = TypeVar("T")

_work: Callable[[int], Any] | None = None  # of the processes below, inherited


def mapped(
    fn: Callable[[int], T], num: int, note: str, num_workers: int, kept: Path | None = None
) -> list[T]:
    """``fn`` of 0 … num - 1, in so many forked processes of one thread each: small networks gain
    more from two cases at once than from two threads.

    ``kept``: a folder in which the result of each case is left, and taken from if it is there.
    """
    global _work
    checks.at_once("--workers", num_workers)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        fn = partial(_taken_or_made, fn, kept)
    if num_workers == 1:
        return [fn(i) for i in track(range(num), note)]
    _work = fn
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("fork")) as pool:
        return list(track(pool.map(_one, range(num)), note, total=num))


def _taken_or_made(fn: Callable[[int], T], kept: Path, index: int) -> T:
    path = kept / f"{index}.pkl"
    if path.exists():
        return pickle.loads(path.read_bytes())
    result = fn(index)
    kept.mkdir(parents=True, exist_ok=True)  # the same command beside this one may have ended
    partial_path = path.with_suffix(f".{os.getpid()}")
    partial_path.write_bytes(pickle.dumps(result))
    partial_path.replace(path)
    return result


def _one(index: int) -> Any:
    torch.set_num_threads(1)
    assert _work is not None
    return _work(index)


def in_a_process(fn: Callable[..., T], *arguments: object) -> T:
    """``fn(*arguments)`` in a new process of its own, whose peak memory is that of the call."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(fn, *arguments).result()
