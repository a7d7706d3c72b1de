"""A small search for kernels, for the tests of its parts: its task, and a judge without a clock."""

import random
from typing import Any

from avatar_v.kernels.evolve.fitness import Verdict
from avatar_v.kernels.evolve.spec import Budget, Limits, Shape, Spec


def make_spec(**other: Any) -> Spec:
    """All candidates of its grammar are right."""
    values = {
        "scope": "gated_add_norm", "shape": Shape(2, 3, 2, 16), "families": ("cpp",),
        "budget": Budget(12, 60.0), "baseline": "eager", "calls": 2, "pairs": 6, "final_pairs": 6,
        "islands": 2, "per_generation": 2, "migrate_every": 2,
        "limits": Limits(build_s=150.0, window_s=30.0, cpu_s=30, memory_mb=2048, files_mb=64),
    }  # fmt: skip
    return Spec(**(values | other))


def judged(code: str) -> Verdict:
    """A landscape of its own: the same number for the same code."""
    value = random.Random(code).random()
    if value < 0.2:
        return Verdict("wrong", "differs by 1")
    return Verdict("ok", "", 1 + value, 0.9 + value, 1.1 + value, 6, 1e-6)
