"""One function over many cases, in several processes; stopped, it goes on where it was."""

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import track

T = TypeVar("T")

_work: Callable[[int], Any] | None = None  # of the processes below, inherited


def mapped(
    fn: Callable[[int], T], num: int, note: str, num_workers: int, kept: Path | None = None
) -> list[T]:
    """``fn`` of 0 … num - 1, in so many forked processes of one thread each: small networks gain
    more from two cases at once than from two threads.

    ``kept``: a folder (`kept_folder`) where each case's result is left, and taken from if it is
    there already.
    """
    global _work
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        fn = partial(_taken_or_made, fn, kept)
    if num_workers == 1:
        return [fn(i) for i in track(range(num), note, transient=True)]
    _work = fn
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context("fork")) as pool:
        return list(track(pool.map(_one, range(num)), note, total=num, transient=True))


def kept_folder(out: Path | str, name: str, state: tuple[str, bool], **what: Any) -> Path | None:
    """Where a measurement that is called again finds what it had finished: a folder of ``name``
    and of ``what`` decides its results. None, with a line that says so, where ``state``
    (records.git_state as it began) has uncommitted changes, since nobody knows which."""
    commit, dirty = state
    if dirty:
        print("uncommitted changes: stopped, this measurement would begin anew")
        return None
    text = json.dumps({"commit": commit, **what}, sort_keys=True, default=str)
    return Path(out) / ".kept" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def forget(kept: Path | None) -> None:
    """The measurement is written: what was kept for it goes."""
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)


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
