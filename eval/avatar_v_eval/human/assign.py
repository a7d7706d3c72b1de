"""The items of each rater, their order and their sides.

Every rater gets the same number of items. Taking the least-assigned items first keeps the counts of
any two items within one of each other, so ceil(items × raters per item / items per rater) finished
raters give every video its number of raters. Order and sides come from the study's seed and the
rater's name, so a plan can be repeated.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from avatar_v_eval.human.items import Item, check_items, study_items
from avatar_v_eval.human.study import PAIRED, Study


def num_raters_needed(study: Study) -> int:
    """The number of raters who must finish so that each item has its ``raters_per_item``."""
    needed = []
    for task in study.tasks:
        items = len(study_items(study, task.kind)) if not task.trusted else 0
        per_rater = min(task.items_per_rater, items)
        needed.append(math.ceil(items * task.raters_per_item / per_rater) if items else 0)
    return max(needed)


def practice_plan(
    study: Study, role: Literal["qualification", "calibration"], seen: Collection[str] = ()
) -> list[tuple[Item, bool]]:
    """(item, second on the left) of a round with feedback, task after task, as written; one of
    calibration has items that the rater has not seen."""
    checks = [item for task in study.tasks for item in check_items(study, task.kind, role)]
    new = [(item, False) for item in checks if item.name not in seen]
    return new if role == "qualification" else new[: study.audits.calibration_items]


def rating_plan(
    study: Study,
    rater: str,
    load: Counter[str],
    *,
    seen: Collection[str] = (),
    is_trusted: bool = False,
) -> list[tuple[Item, bool]]:
    """(item, second on the left) of the rating round: a block per task, its checks mixed in.

    ``load`` is the number of raters per item name so far, ``seen`` what the rater had before: a
    further batch holds only items that lack raters. A block never opens with a check, and half of
    its pairs (rounded down or up at random) have their systems exchanged. Tasks for trusted raters
    come first, better paid ones before others.
    """
    generator = random.Random(f"{study.seed}/{rater}" + (f"/{len(seen)}" if seen else ""))
    plan = []
    tasks = [task for task in study.tasks if is_trusted or not task.trusted]
    for task in sorted(tasks, key=lambda task: (not task.trusted, -task.pay * task.trusted)):
        items = [item for item in study_items(study, task.kind) if item.name not in seen]
        if seen:
            items = [item for item in items if load[item.name] < task.raters_per_item]
        block = least_loaded(items, load, task.items_per_rater, generator)
        for role in ("gold", "trap") if block else ():
            for check in check_items(study, task.kind, role):
                if check.name in seen:
                    continue
                block.insert(generator.randint(min(1, len(block)), len(block)), check)
        plan += zip(block, _sides(block, generator), strict=True)
    return plan


def least_loaded(
    items: Sequence[Item], load: Counter[str], num: int, generator: random.Random
) -> list[Item]:
    """``num`` items with the fewest raters, ties broken at random, in random order."""
    mixed = list(items)
    generator.shuffle(mixed)
    chosen = sorted(mixed, key=lambda item: load[item.name])[:num]
    generator.shuffle(chosen)
    return chosen


def _sides(block: Sequence[Item], generator: random.Random) -> list[bool]:
    if not block or block[0].kind not in PAIRED:
        return [False] * len(block)
    start = generator.randrange(2)
    sides = [(start + i) % 2 == 1 for i in range(len(block))]
    generator.shuffle(sides)
    return sides
