"""Measurements on disk, found by what went into them: a run that was stopped goes on.

A key is the sha256 of the contents of the case's files and of the video, the metric with its
version and the hash of its weights. Names, folders and dates are no part of it. An entry is one
small JSON file, written whole or not at all, so that several processes may share a cache. Rows of
features lie beside it.
"""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

from avatar_v.base.words import readable
from avatar_v.scoring.values import Values
from avatar_v.shards.arrays import load_arrays


class Mistake(ValueError):
    """Of a metric's code: a row has the reason, which is not kept, since the code will change."""


@dataclass(frozen=True)
class Entry:
    """The outcome of a metric for a video: numbers, or in ``reason`` why there are none."""

    values: dict[str, float]
    frames: dict[str, list[tuple[int, float]]]
    notes: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0  # that measuring took, when it was measured
    cached: bool = False  # this time it was only read
    rows: Float[np.ndarray, "n d"] | None = field(default=None, compare=False)


def measurement_key(
    case: str, video: str, metric: str, version: int, weights: str, options: str = ""
) -> str:
    """64 hex digits for one measurement; ``case`` and ``video`` are hashes of contents."""
    text = json.dumps([case, video, metric, version, weights, options])
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A folder of entries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, key: str, measure: Callable[[], Values]) -> Entry:
        """The entry of a key, measured and kept where it is not there yet.

        A ValueError of ``measure`` is an entry too: its text is the reason. So is a number that is
        not finite. A `Mistake` is measured again the next time. All other errors end the program.
        """
        path = self.folder / key[:2] / f"{key}.json"
        if (found := _read(path)) is not None:
            return dataclasses.replace(found, cached=True)
        begin = time.perf_counter()
        try:
            measured = measure()
            _check_finite(measured)
            values, reason = dict(measured.values), ""
            frames = {name: list(map(_pair, rows)) for name, rows in measured.frames.items()}
            notes = measured.notes
            rows = None if measured.rows is None else measured.rows.float().cpu().numpy()
        except Mistake as error:
            return Entry({}, {}, reason=readable(error))
        except ValueError as error:
            values, frames, notes, rows, reason = {}, {}, (), None, readable(error)
        seconds = round(time.perf_counter() - begin, 4)
        entry = Entry(values, frames, notes, reason, seconds, rows=rows)
        _write(path, entry)
        return entry


def _read(path: Path) -> Entry | None:
    """None where there is none, and where a power cut left half of one."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        rows = _read_rows(_rows_path(path)) if raw["has_rows"] else None
        frames = {name: list(map(_pair, own)) for name, own in raw["frames"].items()}
        notes = tuple(raw["notes"])
        return Entry(raw["values"], frames, notes, raw["reason"], raw["seconds"], rows=rows)
    except FileNotFoundError:
        return None
    # those of JSON, UTF-8 and arrays are ValueErrors, the others are of JSON that is no entry
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_rows(path: Path) -> Float[np.ndarray, "n d"]:
    rows = load_arrays(path.read_bytes(), str(path))
    if not isinstance(rows, np.ndarray):
        raise ValueError(f"{path}: expected one array, got several")
    return rows


def _write(path: Path, entry: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = dataclasses.asdict(entry)
    for name in ("cached", "rows"):
        raw.pop(name)
    raw["has_rows"] = entry.rows is not None
    partial = path.with_suffix(f".{os.getpid()}.partial")
    if entry.rows is not None:
        with partial.open("wb") as file:
            np.save(file, entry.rows)
        partial.replace(_rows_path(path))
    partial.write_text(json.dumps(raw), encoding="utf-8")
    partial.replace(path)


def _rows_path(path: Path) -> Path:
    return path.with_suffix(".npy")


def _check_finite(measured: Values) -> None:
    if measured.rows is not None and not bool(measured.rows.isfinite().all()):
        raise ValueError("its features are not all finite numbers")
    for name, value in measured.values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a finite number")


def _pair(row) -> tuple[int, float]:
    return int(row[0]), float(row[1])
