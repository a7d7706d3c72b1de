"""The systems that a study compares: weights, how they are sampled, and what they are shown.

A system is NAME=WEIGHTS?FIELD=VALUE&…, with fields of a request; a way is a system after a length
of reference. Pairs A:B of ways are compared person by person.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from avatar_v.request.checks import check_settings
from avatar_v_eval.bench.own_system import parse_options
from avatar_v_eval.rollout import Rollout, add_sampling_options

LENGTHS = {"minute": 1501, "video": 401, "eight_s": 201, "four_s": 101, "image": 1, "none": 0}
"""Frames of the reference; a card may read a few of them."""
WORDS = {
    "minute": "1 min of reference",
    "video": "16 s of reference",
    "eight_s": "8 s of reference",
    "four_s": "4 s of reference",
    "image": "one reference frame",
    "none": "no reference",
}
STARTS = {"image": "first frame given", "prompt": "from the prompt"}


@dataclass(frozen=True)
class Way:
    """One system after a length of reference, from a first frame or without."""

    rollout: Rollout
    num_frames: int  # of the reference
    words: str


def add_system_options(parser: argparse.ArgumentParser) -> None:
    """Options of sampling, systems, references and pairs, for `parse_ways` and `parse_pairs`."""
    add_sampling_options(parser)
    add = parser.add_argument
    add("--systems", nargs="+", metavar="NAME=WEIGHTS[?FIELD=VALUE&…]",
        help="what is compared (default: --weights alone)")  # fmt: skip
    add("--references", nargs="+", default=["eight_s"], choices=list(LENGTHS))
    add("--pairs", nargs="*", default=[], metavar="A:B", help="ways to compare, paired")


def parse_ways(options: argparse.Namespace, starts: Sequence[str] = ("image",)) -> dict[str, Way]:
    """Key → way: the system's name, and what else there are several of. ValueError for systems that
    cannot be loaded or have no name."""
    texts = options.systems or [f"made={options.weights}"]
    systems = {name: parse_system(text, options) for name, text in named(texts)}
    ways = {}
    for name, (length, start) in itertools.product(
        systems, itertools.product(options.references, starts)
    ):
        rollout, told = systems[name], [(name, name)]
        if len(options.references) > 1:
            told.append((length, WORDS[length]))
        if len(starts) > 1:
            told.append((start, STARTS[start]))
        key, words = "_".join(x[0] for x in told), ", ".join(x[1] for x in told)
        started = rollout if start == "image" else rollout.from_prompt()
        ways[key] = Way(started, LENGTHS[length], words)
    return ways


def longest_reference(options: argparse.Namespace) -> int:
    """Frames of the longest reference that is asked for, at least one."""
    return max(1, *(LENGTHS[name] for name in options.references))


def named(systems: list[str]) -> list[tuple[str, str]]:
    """NAME and what it stands for. ValueError for a system without a name, or two of one name."""
    pairs = [tuple(text.split("=", 1)) for text in systems]
    names = [pair[0] for pair in pairs]
    if any(len(pair) != 2 for pair in pairs) or len(set(names)) != len(names):
        raise ValueError(f"systems are NAME=WEIGHTS, each name once, got {systems}")
    return [(name, rest) for name, rest in pairs]


def parse_system(text: str, options: argparse.Namespace) -> Rollout:
    """The weights of ``WEIGHTS?FIELD=VALUE&…``, sampled so."""
    weights, _, fields = text.partition("?")
    asked = parse_options(fields)
    if "precision" in asked:
        options = argparse.Namespace(**{**vars(options), "precision": asked.pop("precision")})
    rollout = Rollout.load(weights, options)
    request = rollout.request.changed(**asked)
    check_settings(request)
    return dataclasses.replace(rollout, request=request)


def parse_pairs(options: argparse.Namespace, ways: Iterable[str]) -> list[tuple[str, str]]:
    """The ways of each ``A:B``. ValueError for a name that is none."""
    known, pairs = list(ways), []
    for text in options.pairs:
        first, _, second = text.partition(":")
        if first not in known or second not in known:
            raise ValueError(f"--pairs {text}: the ways are {', '.join(known)}")
        pairs.append((first, second))
    return pairs


def check_motion_nets(ways: Mapping[str, Way]) -> None:
    """ValueError for weights that have no motion network."""
    for key, way in ways.items():
        if way.rollout.pipeline.conditioner.motion_net is None:
            raise ValueError(f"{key} has no motion network: see recipes/3_motion.yaml")


def join_recipes(ways: Mapping[str, Way]) -> str:
    """The recipes of all, for a result."""
    return ", ".join(sorted({way.rollout.recipe for way in ways.values()}))


def weights_hashes(ways: Mapping[str, Way], *parts: str) -> dict[str, str]:
    """PART of WAY: the hash of its tensors; all parts where none is named."""
    return {
        f"{part} of {key}": value
        for key, way in ways.items()
        for part, value in way.rollout.hashes().items()
        if not parts or part in parts
    }
