"""All systems and metrics of one case: the unit of work that processes share out."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.registry import build
from avatar_v.scoring.scorer import Scorer, failure
from avatar_v.scoring.values import ScoreOutput, Values
from avatar_v_eval.bench.cache import Cache, Entry, Mistake, measurement_key
from avatar_v_eval.bench.delivery import Delivery
from avatar_v_eval.bench.footage import CHECKS_VERSION, CaseMedia
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles
from avatar_v_eval.bench.rows import CaseRow, FeatureRow, FrameRow
from avatar_v_eval.files import file_hash


@dataclass(frozen=True)
class Scoring:
    """The metrics to measure and the folder of the cache; travels to worker processes."""

    metrics: tuple[type[Scorer], ...]
    weights: tuple[tuple[str, str], ...]  # metric name, path
    cache: Path
    convert: bool  # take videos of another frame rate


@dataclass(frozen=True)
class Job:
    """One case, and what each system delivered of it."""

    manifest: BenchManifest
    case: CaseFiles
    deliveries: Mapping[str, Delivery]


@dataclass(frozen=True)
class CaseRows:
    """The rows of a case."""

    cases: list[CaseRow]
    frames: list[FrameRow]
    features: list[FeatureRow]


def score_case(job: Job, scoring: Scoring) -> CaseRows:
    """A row for every system and output of a case, measured or with a reason; and per frame."""
    metrics = built_metrics(scoring)
    media, cache = CaseMedia(job.manifest, job.case), Cache(scoring.cache)
    rows, frames, features = [], [], []
    for system, delivery in job.deliveries.items():
        reason, video, file = delivery.reason, "", ""
        entries = dict.fromkeys((m.name for m in metrics), Entry({}, {}, reason=reason))
        if not reason:
            assert delivery.path is not None
            video, file = file_hash(delivery.path), str(delivery.path.resolve())
            entries = score_video(media, delivery, video, metrics, cache, scoring.convert)
        for metric in metrics:
            entry = entries[metric.name]
            more = [
                replace(_case_row(job.case, system, metric, out, entry), video=video, file=file)
                for out in metric.outputs
            ]
            rows += more
            frames += [
                FrameRow(system, job.case.id, metric.name, key, frame, value)
                for key, values in entry.frames.items()
                for frame, value in values
            ]
            features += [
                FeatureRow(system, job.case.id, metric.name, index, row)
                for index, row in enumerate(() if entry.rows is None else entry.rows)
            ]
    return CaseRows(rows, frames, features)


def score_video(
    media: CaseMedia,
    delivery: Delivery,
    video: str,
    metrics: Sequence[Scorer],
    cache: Cache,
    convert: bool,
) -> dict[str, Entry]:
    """Metric name → what it says of a video with hash ``video``, decoded only where needed."""

    @functools.cache
    def clip() -> ScoredClip:
        assert delivery.path is not None
        clip = media.clip(delivery.path, convert=convert)
        return replace(clip, timing=delivery.timing)

    def checked() -> Values:
        clip()
        return Values({})

    case, options = media.case.fingerprint, f"convert={convert}"
    reported = "" if delivery.timing is None else file_hash(delivery.timing)
    readable = cache.entry(
        measurement_key(case, video, "video", CHECKS_VERSION, "", options), checked
    )
    if readable.reason:
        return {metric.name: readable for metric in metrics}
    return {
        metric.name: cache.entry(
            measurement_key(
                case,
                video,
                metric.name,
                metric.version,
                metric.weights,
                f"{options} {reported}" if metric.reads_timing else options,
            ),
            functools.partial(_measured, metric, clip),
        )
        for metric in metrics
    }


@functools.cache
def built_metrics(scoring: Scoring) -> list[Scorer]:
    """The metrics with their networks, loaded once a process."""
    return [build(one, dict(scoring.weights)) for one in scoring.metrics]


def _measured(metric: Scorer, clip: Callable[[], ScoredClip]) -> Values:
    """What the metric says. `Mistake` for any error but a ValueError, and for other outputs than
    it names: one metric's fault is its rows' reason, and ends no run."""
    seen = clip()
    try:
        found = metric.score(seen)
        values = {name: float(value) for name, value in found.values.items()}
        frames = {
            name: [(int(i), float(x)) for i, x in rows] for name, rows in found.frames.items()
        }
    except ValueError:
        raise
    except Exception as error:
        raise Mistake(f"{metric.name} failed: {failure(metric, error)}") from error
    named = [output.key for output in metric.outputs]
    if sorted(values) != sorted(named):
        raise Mistake(f"{metric.name} gave {sorted(values)}, and its outputs are {sorted(named)}")
    return replace(found, values=values, frames=frames)


def _absence(metric: Scorer, output: ScoreOutput, entry: Entry) -> str:
    """Why a measurement that went well lacks an output: it was kept before the metric gave it."""
    there = output.key in entry.values
    return "" if there else f"{metric.name} was kept without {output.key}: raise its version"


def _case_row(
    case: CaseFiles, system: str, metric: Scorer, output: ScoreOutput, entry: Entry
) -> CaseRow:
    return CaseRow(
        system=system,
        case=case.id,
        condition=case.condition,
        person=case.person,
        language=case.language,
        metric=metric.name,
        output=output.key,
        value=entry.values.get(output.key),
        reason=entry.reason or _absence(metric, output, entry),
        notes="; ".join(entry.notes),
        version=metric.version,
        judge=metric.judge,
        weights=metric.weights,
        video="",
        seconds=entry.seconds,
        cached=entry.cached,
    )
