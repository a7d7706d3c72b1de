"""What pages send and are shown of an answer, against what votes hold. Nothing sent is believed.

A page knows sides (left, right), votes know places (first, second).
"""

import math
from collections.abc import Mapping, Sequence

from avatar_v_eval.human.questions import AXES
from avatar_v_eval.human.ranges import MAX_RANGES, Marked, as_text, read_ranges
from avatar_v_eval.human.study import Kind, Study
from avatar_v_eval.human.votes import BY_LINE, CHOICES, SCALES

SIDES = ("left", "right", "tie")
SLACK_S = 0.1
"""A player may stop so much after the end of a clip."""


def read_answer(
    study: Study, kind: Kind, answer: object, *, second_on_left: bool, duration_s: float = math.inf
) -> dict[str, str]:
    """The answers that a page sent, as ``dimension → answer`` (``"" → answer`` without lines).

    The page sends {"identity": 4, …} for mos and score and {"gaze": "left", …} for attributes, with
    all lines, {"choice": "left"} for pairs, {"ranges": [{"fault": "teeth", "start": 0.4, "stop":
    1.2}]} for ranges within ``duration_s``. Raises ValueError saying what is wrong.
    """
    if not isinstance(answer, Mapping):
        raise ValueError(f"an answer is a mapping, got {type(answer).__name__}")
    if kind == "ranges":
        return {"": _ranges(study, answer, duration_s)}
    if kind not in BY_LINE:
        return {"": _place(kind, answer, second_on_left)}
    lines = lines_of(study, kind)
    if sorted(map(str, answer)) != sorted(lines):
        raise ValueError(
            f"expected an answer for each of {[*lines]}, got {sorted(map(str, answer))}"
        )
    for key, known in lines.items():
        if isinstance(answer[key], bool | float) or answer[key] not in known:
            told = f"{known[0]} to {known[-1]}" if isinstance(known, range) else f"one of {known}"
            raise ValueError(f"{key} is {told}, got {answer[key]!r:.60}")
    return {key: str(answer[key]) for key in lines}


def lines_of(study: Study, kind: Kind) -> Mapping[str, Sequence]:
    """Line → what can be answered, of a kind of `BY_LINE`."""
    if kind == "attributes":
        return {attribute.key: attribute.values for attribute in study.attributes}
    return {line.key: SCALES[kind] for line in (AXES if kind == "score" else study.dimensions)}


def sent_answer(kind: Kind, answers: Mapping[str, str], *, second_on_left: bool) -> dict:
    """The form in which the page would have sent ``answers``."""
    if kind in SCALES:
        return {key: int(answer) for key, answer in answers.items()}
    if kind == "attributes":
        return dict(answers)
    if kind == "ranges":
        return {"ranges": [vars(marked) for marked in read_ranges(answers[""])]}
    side = "tie" if answers[""] == "tie" else SIDES[(answers[""] == "second") != second_on_left]
    return {"choice": side}


def described(kind: Kind, answers: Mapping[str, str], *, second_on_left: bool) -> str:
    """An answer in words, as a reviewer reads it."""
    if kind in ("pair", "turing"):
        choice = sent_answer(kind, answers, second_on_left=second_on_left)["choice"]
        return {"left": "A", "right": "B", "tie": "no difference"}[choice]
    words = [f"{key} {answer}".strip() for key, answer in answers.items()]
    return ", ".join(words).replace("_", " ").replace(":", " ")


def _ranges(study: Study, answer: Mapping, duration_s: float) -> str:
    marked = answer.get("ranges")
    if set(answer) != {"ranges"} or not isinstance(marked, Sequence) or isinstance(marked, str):
        raise ValueError(f"expected ranges, got {sorted(map(str, answer))}")
    if len(marked) > MAX_RANGES:
        raise ValueError(f"at most {MAX_RANGES} ranges are marked, got {len(marked)}")
    return as_text(_marked(study, one, duration_s) for one in marked)


def _marked(study: Study, one: object, duration_s: float) -> Marked:
    if not isinstance(one, Mapping) or set(one) != {"fault", "start", "stop"}:
        raise ValueError(f"a range has fault, start and stop, got {one!r:.60}")
    times = one["start"], one["stop"]
    if any(isinstance(t, bool) or not isinstance(t, (int, float)) for t in times):
        raise ValueError(f"start and stop are seconds, got {times!r:.60}")
    if one["fault"] not in [fault.key for fault in study.faults]:
        raise ValueError(f"a fault is one of the study's, got {one['fault']!r:.60}")
    if not 0 <= times[0] < times[1] <= duration_s + SLACK_S:  # also for what is no number
        raise ValueError(f"a range lies within the clip and has a length, got {times!r:.60}")
    start, stop = round(times[0], 2), round(min(times[1], duration_s), 2)
    if stop - start < 0.005:
        raise ValueError(f"a range is at least 0.01 s long, got {times!r:.60}")
    return Marked(one["fault"], start, stop)


def _place(kind: Kind, answer: Mapping, second_on_left: bool) -> str:
    choice, sides = answer.get("choice"), SIDES[: len(CHOICES[kind])]
    if set(answer) != {"choice"} or choice not in sides:
        raise ValueError(f"a choice is one of {sides}, got {dict(answer)!r:.200}")
    if choice == "tie":
        return "tie"
    return "second" if (choice == "left") == second_on_left else "first"
