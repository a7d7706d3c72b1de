"""The files of an import, each read once: in processes, and kept until all are.

A file's result is a shard of its clips and, written last, its rows as JSON. Both lie in a hidden
folder under a name made from all that they depend on, so a result is used again as long as that
stays the same. Persons and splits are settled afterwards (importer.py).
"""

import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from avatar_v.base.interrupts import interrupts_deferred
from avatar_v.shards.schema import Sample
from avatar_v.shards.writer import index_path, write_shard, write_text_atomically
from avatar_v_data.import_file import FileResult, ImportRow, ReadSettings, read_file
from avatar_v_data.import_plan import Source
from avatar_v_data.threads import one_thread

Jobs = list[tuple[Source, Path]]


def work_folder(out: str | Path) -> Path:
    """Where finished files lie until all are: hidden, beside ``out``."""
    return Path(out).with_name(f".{Path(out).name}.import")


def read_files(
    sources: list[Source],
    settings: ReadSettings,
    work: Path,
    num_workers: int,
    on_file: Callable[[int, int], None],
) -> list[Path]:
    """Read every file that is not finished yet, here or in processes, and say where all lie."""
    places = [work / _fingerprint(source, settings) for source in sources]
    jobs = list(zip(sources, places, strict=True))
    todo = [(source, place) for source, place in jobs if not _is_finished(place)]
    done = itertools.count(len(sources) - len(todo) + 1)
    on_file(len(sources) - len(todo), len(sources))
    finished = _read_here if num_workers == 1 or len(todo) < 2 else _read_in_workers
    for _ in finished(todo, settings, num_workers):
        on_file(next(done), len(sources))
    return places


def read_result(place: Path) -> FileResult:
    """The rows of a finished file."""
    return FileResult.from_json(_rows_path(place).read_text())


def clips_path(place: Path) -> Path:
    """The shard of a finished file."""
    return place.with_suffix(".tar")


def _fingerprint(source: Source, settings: ReadSettings) -> str:
    """The name of a file's result: another file, caption or setting gives another one."""
    try:
        state = os.stat(source.path)
        file = [state.st_size, state.st_mtime_ns]
    except OSError:
        file = []
    parts = [dataclasses.replace(part, person="", split="") for part in source.parts]
    known = dataclasses.replace(source, path="", parts=tuple(parts))  # persons: settled in the end
    text = json.dumps([dataclasses.asdict(known), dataclasses.asdict(settings), file])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_here(todo: Jobs, settings: ReadSettings, num_workers: int) -> Iterator[None]:
    with one_thread():
        for source, place in todo:
            yield _read_one(source, place, settings)


def _read_in_workers(todo: Jobs, settings: ReadSettings, num_workers: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    num = min(num_workers, len(todo))
    with ProcessPoolExecutor(num, context, _start_worker, (stopping,)) as pool:
        try:
            with interrupts_deferred():  # the first tasks start the processes
                pending = {pool.submit(_read_one, *job, settings) for job in todo}
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            left = [source.name for source, place in todo if not _is_finished(place)]
            raise OSError(
                f"a worker process died (memory?) at one of {', '.join(left[:num])}; "
                "the same command goes on with what is finished"
            ) from error
        except BaseException:
            stopping.set()  # they end at their next clip
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_stopping = None  # in a worker process: whether it is to end


def _start_worker(stopping) -> None:
    global _stopping
    _stopping = stopping
    torch.set_num_threads(1)


def _read_one(source: Source, place: Path, settings: ReadSettings) -> None:
    """Write `PLACE.tar` with the file's clips and, last, `PLACE.json` with its rows."""
    result = FileResult()
    index = write_shard(clips_path(place), _until_stopped(read_file(source, settings, result)))
    result.dropped += [ImportRow(source.name, "", failure.reason) for failure in index.failures]
    result.num_clips = len(index.clips)
    write_text_atomically(_rows_path(place), json.dumps(dataclasses.asdict(result), sort_keys=True))


def _until_stopped(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        if _stopping is not None and _stopping.is_set():
            raise KeyboardInterrupt
        yield sample


def _rows_path(place: Path) -> Path:
    return place.with_suffix(".json")


def _is_finished(place: Path) -> bool:
    return _rows_path(place).is_file() and index_path(clips_path(place)).is_file()
