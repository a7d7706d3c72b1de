"""The items of each rater, their order and their sides.

Every rater gets the same number of items. Taking the least-assigned items first keeps the counts of
any two items within one of each other, so ceil(items × raters per item / items per rater) finished
raters give every video its number of raters. Order and sides come from the study's seed and the
rater's name, so a plan can be repeated.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

from avatar_v_eval.human.items import Item, check_items, study_items
from avatar_v_eval.human.study import Study


def num_raters_needed(study: Study) -> int:
    """The number of raters who must finish so that each item has its ``raters_per_item``."""
    needed = []
    for task in study.tasks:
        items = len(study_items(study, task.kind))
        per_rater = min(task.items_per_rater, items)
        needed.append(math.ceil(items * task.raters_per_item / per_rater) if items else 0)
    return max(needed)


def qualification_plan(study: Study) -> list[tuple[Item, bool]]:
    """(item, second on the left) of the qualification round, task after task, as written."""
    return [
        (item, False)
        for task in study.tasks
        for item in check_items(study, task.kind, "qualification")
    ]


def rating_plan(study: Study, rater: str, load: Counter[str]) -> list[tuple[Item, bool]]:
    """(item, second on the left) of the rating round: a block per task, its checks mixed in.

    ``load`` is the number of raters per item name so far. A block never opens with a check, and
    half of its pairs (rounded down or up at random) have their systems exchanged.
    """
    generator = random.Random(f"{study.seed}/{rater}")
    plan = []
    for task in study.tasks:
        items = study_items(study, task.kind)
        block = least_loaded(items, load, task.items_per_rater, generator)
        for role in ("gold", "trap"):
            for check in check_items(study, task.kind, role):
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
    if not block or block[0].kind == "mos":
        return [False] * len(block)
    start = generator.randrange(2)
    sides = [(start + i) % 2 == 1 for i in range(len(block))]
    generator.shuffle(sides)
    return sides
