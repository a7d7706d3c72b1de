"""Clips that are chosen together beside clips that pass each limit alone, of drawn footage.

The stage `clips` takes the set of stretches with the most seconds whose means hold its limits
(Avatar V §5.1.1). The usual ways ask each limit of each look, or of each shot. All three have the
same shots, faces and speech.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from avatar_v_data.curation.clips import ClipStage, good_ticks, speech_per_tick
from avatar_v_data.curation.curated import Curated
from avatar_v_data.curation.stages import FAILED, TICK, TICKS_PER_S, Result, seconds
from avatar_v_eval.intervals import jackknife
from avatar_v_eval.records import Number
from avatar_v_eval.studies.curation_truth import WANTED, Truth

SEEN_SPEAKING = (*WANTED, "shaky", "choppy", "light", "flicker")
"""Kinds of shots that a stage which sees faces and hears speech cannot tell apart."""
Span = tuple[int, int]
Results = Mapping[str, Result]


def beside_limits(run: Curated, truths: Sequence[Truth]) -> dict[str, Number]:
    """What each way of clipping takes of good speech, how pure and how long its clips are.
    ValueError for a run that has no shots, faces, speech and clips of these recordings."""
    (stage,) = (stage for stage in run.plan.stages if isinstance(stage, ClipStage))
    known: dict[str, dict[str, Result]] = {}
    needed = (*stage.needs, stage.name)
    for task in run.of_stages(needed):
        known.setdefault(task.recording.name, {})[task.stage.name] = run.store.result(task.key)
    pairs = [
        (truth, results)
        for truth in truths  # another recording shows all of those without results
        if (results := known.get(truth.file)) and not any(FAILED in results[n] for n in needed)
    ]
    ways: dict[str, tuple[str, Callable[[ClipStage, Results], list[Span]]]] = {
        "together": ("chosen together", _chosen),
        "looks": ("limits of each look", by_look),
        "shots": ("limits of each shot", by_shot),
    }
    numbers: dict[str, Number] = {}
    parts: dict[str, np.ndarray] = {}
    for name, (words, clips) in ways.items():
        rows = [_counts(truth, clips(stage, results)) for truth, results in pairs]
        parts[name] = np.array(rows, float)
        for key, top, below, says in (
            ("good", 0, 1, "good speech that lies in clips"),
            ("pure", 2, 3, "clips' time in which one person is seen speaking"),
            ("length", 4, 5, "seconds a clip"),
        ):
            numbers[f"clips_{key}_{name}"] = _ratio(parts[name][:, [top, below]]).described(
                f"{says}: {words}", unit="s" if key == "length" else ""
            )
    for name in ("looks", "shots"):
        both = np.concatenate([parts["together"][:, :2], parts[name][:, :2]], 1)
        numbers[f"clips_more_than_{name}"] = _ratio(both).described(
            f"good speech in clips: chosen together, less {ways[name][0]}"
        )
    return numbers


def by_look(stage: ClipStage, results: Results) -> list[Span]:
    """Runs of ticks of a shot, each of which shows a good face and holds enough speech; in pieces
    of the longest length. Frames, first and last + 1."""
    return [
        piece
        for first, last in _shots(stage, results)
        for start, stop in _runs(_holds(stage, results, first, last), first)
        for piece in _pieces(start, stop, stage)
    ]


def by_shot(stage: ClipStage, results: Results) -> list[Span]:
    """Each shot in as few equal pieces as the longest length allows; those whose means hold the
    limits."""
    found = []
    for first, last in _shots(stage, results):
        num = max(-(-(last - first) // round(stage.max_s * TICKS_PER_S)), 1)
        edges = [round(first + (last - first) * part / num) for part in range(num + 1)]
        for start, stop in itertools.pairwise(edges):
            if stop - start < stage.min_s * TICKS_PER_S:
                continue
            good, spoken = _ticks(stage, results, start, stop)
            if good.mean() >= stage.good and spoken.mean() >= stage.speech:
                found.append((start * TICK, stop * TICK))
    return found


def _chosen(stage: ClipStage, results: Results) -> list[Span]:
    return [(clip["start"], clip["stop"]) for clip in results[stage.name]["clips"]]


def _shots(stage: ClipStage, results: Results) -> Iterator[Span]:
    """Ticks of shots, without their margins."""
    margin = round(stage.margin_s * TICKS_PER_S)
    for start, stop in results["shots"]["shots"]:
        first, last = -(-start // TICK) + margin, stop // TICK - margin
        if first < last:
            yield first, last


def _ticks(
    stage: ClipStage, results: Results, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    good = good_ticks(stage, results["faces"], first, last)
    return good, speech_per_tick(results["speech"]["speech"], first, last)


def _holds(stage: ClipStage, results: Results, first: int, last: int) -> np.ndarray:
    good, spoken = _ticks(stage, results, first, last)
    return (good > 0) & (spoken >= stage.speech)


def _runs(holds: np.ndarray, offset: int) -> list[Span]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], holds.astype(int), [0]])))
    return [(int(a) + offset, int(b) + offset) for a, b in edges.reshape(-1, 2)]


def _pieces(start: int, stop: int, stage: ClipStage) -> Iterator[Span]:
    longest, shortest = (round(x * TICKS_PER_S) for x in (stage.max_s, stage.min_s))
    for first in range(start, stop, longest):
        if (last := min(first + longest, stop)) - first >= shortest:
            yield first * TICK, last * TICK


def _counts(truth: Truth, clips: Sequence[Span]) -> tuple[float, ...]:
    """Frames of good speech in clips, of good speech, of clips that show one speaking, of clips;
    seconds and number of clips."""
    kind = truth.of_frames("kind").astype(str)
    inside, good = truth.is_in(clips), np.isin(kind, WANTED)
    speaking = np.isin(kind, SEEN_SPEAKING)
    counts = (inside & good).sum(), good.sum(), (inside & speaking).sum(), inside.sum()
    return (*(float(x) for x in counts), seconds(int(inside.sum())), float(len(clips)))


def _ratio(table: np.ndarray) -> Number:
    """Sum of the first column over that of the second, less the same of the third and fourth where
    they are there; recordings are the units: those that have some. An interval needs two."""
    table = table[(table[:, 1::2] > 0).any(1)]

    def statistic(index: np.ndarray) -> float:
        sums = table[index].sum(0).reshape(-1, 2)
        shares = [top / below if below else 0.0 for top, below in sums]
        return float(shares[0] - sum(shares[1:]))

    if len(table) < 2:
        return Number(statistic(np.arange(len(table))), len(table))
    return jackknife(statistic, len(table))
