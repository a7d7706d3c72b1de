"""The candidates that need no endpoint: choices for each parameter of a family, and their code.

inductor sets options of torch.compile. cpp fills a template in C++ (cpp.txt), compiled by g++ and
called through ctypes, a second of work where torch's headers would take half a minute. triton fills
one in Triton (triton.txt).
"""

import random
from pathlib import Path
from string import Template
from typing import Any

from avatar_v.kernels.evolve.spec import Spec

Genome = dict[str, Any]
"""The family, and the value of each of its parameters."""

OPTIONS: dict[str, tuple[Any, ...]] = {
    "cpp.simdlen": (None, 0, 128, 256, 512),
    "cpp.min_chunk_size": (512, 64, 4096, 65536),
    "cpp.max_horizontal_fusion_size": (16, 1, 64),
    "cpp.enable_unsafe_math_opt_flag": (False, True),
    "cpp.enable_floating_point_contract_flag": ("off", "fast"),
    "cpp.enable_tiling_heuristics": (True, False),
    "cpp.enable_loop_tail_vec": (True, False),
    "cpp.force_inline_kernel": (False, True),
    "cpp.use_two_step_variance_threshold": (1024, 0, 65536),
    "cpp_wrapper": (False, True),
    "max_fusion_size": (64, 2, 8),
    "realize_reads_threshold": (4, 1, 16),
}
CPP: dict[str, tuple[Any, ...]] = {
    "lanes": (8, 16, 32, 64),
    "rows": (1, 2, 4, 8),
    "order": ("row", "phase"),
    "passes": (2, 1),
    "unroll": (1, 2, 4),
    "level": ("-O3", "-O2"),
    "math": ("", "-ffast-math", "-ffp-contract=off"),
    "vector_bits": (256, 128, 512),
}
TRITON: dict[str, tuple[Any, ...]] = {
    "rows": (1, 2, 4, 8, 16),
    "num_warps": (4, 1, 2, 8, 16),
    "num_stages": (1, 2, 3, 4),
    "order": ("frames", "tokens"),
}
ARGUMENTS = ("x", "update", "gate", "shift", "scale")
TAKES = {
    "modulated_norm": "x, shift, scale",
    "gated_add": "x, update, gate",
    "gated_add_norm": "x, update, gate, shift, scale",
}


def choices(spec: Spec, family: str) -> dict[str, tuple[Any, ...]]:
    """Of each parameter, the usual one first."""
    if family == "inductor":
        return OPTIONS
    if family == "triton":
        return TRITON
    dim = spec.shape.heads * spec.shape.width
    lanes = tuple(n for n in CPP["lanes"] if dim % n == 0) or (1,)
    return {**CPP, "lanes": lanes}


def drawn(spec: Spec, rng: random.Random) -> Genome:
    """Any family, and any value of each parameter."""
    family = rng.choice(spec.families)
    table = choices(spec, family)
    return {"family": family, **{name: rng.choice(values) for name, values in table.items()}}


def bred(spec: Spec, rng: random.Random, parent: Genome, other: Genome) -> Genome:
    """The parent, where both are of one family with some values of the other, and one or two
    parameters drawn anew."""
    child = dict(parent)
    if other["family"] == parent["family"]:
        child |= {name: other[name] for name in parent if rng.random() < 0.3}
    table = choices(spec, parent["family"])
    for name in rng.sample(sorted(table), rng.choice((1, 2))):
        child[name] = rng.choice(table[name])
    return child


def code(spec: Spec, genome: Genome) -> str:
    """The module of a candidate."""
    if genome["family"] == "inductor":
        options = {name: value for name, value in genome.items() if name != "family"}
        return (
            f"import torch\n\nOPTIONS = {options!r}\n\n\n"
            "def build(scope):\n    return torch.compile(scope, options=OPTIONS)\n"
        )
    return _template(genome["family"]).substitute(_words(spec, genome))


def _words(spec: Spec, genome: Genome) -> dict[str, object]:
    shape, adds, norms = spec.shape, "add" in spec.scope, "norm" in spec.scope
    takes = TAKES[spec.scope].split(", ")
    given = [name if name in takes else "None" for name in ARGUMENTS]
    words: dict[str, object] = {
        "SCOPE": spec.scope, "TAKES": ", ".join(takes), "GIVEN": ", ".join(given),
        "DTYPE": spec.dtype,
        "ADDS_PYTHON": adds, "NORMS_PYTHON": norms, "ROWS": genome["rows"],
        "ORDER": genome["order"],
    }  # fmt: skip
    if genome["family"] == "triton":
        swaps = genome["order"] == "tokens"
        return words | {
            "WARPS": genome["num_warps"], "STAGES": genome["num_stages"], "SWAPS": swaps
        }  # fmt: skip
    flags = [genome["level"], genome["math"], "-march=native", "-fopenmp-simd"]
    flags += [f"-mprefer-vector-width={genome['vector_bits']}"]
    flags += ["-fopenmp"] if spec.threads > 1 else []
    return words | {
        "FRAMES": shape.samples * shape.frames, "TOKENS": shape.tokens,
        "DIM": shape.heads * shape.width, "ADDS": str(adds).lower(), "NORMS": str(norms).lower(),
        "LANES": genome["lanes"], "PASSES": genome["passes"], "UNROLL": genome["unroll"],
        "BY_PHASE": str(genome["order"] == "phase").lower(), "THREADS": spec.threads,
        "FLAGS": " ".join(filter(None, flags)),
    }  # fmt: skip


def _template(family: str) -> Template:
    return Template(Path(__file__).with_name(f"{family}.txt").read_text(encoding="utf-8"))
