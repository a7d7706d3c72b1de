"""Systems of a command line: NAME=WEIGHTS?FIELD=VALUE&…, and pairs A:B of them."""

import argparse
import dataclasses
from collections.abc import Mapping

from avatar_v.request.checks import check_settings
from avatar_v_eval.bench.own_system import parse_options
from avatar_v_eval.rollout import Rollout


def named(systems: list[str]) -> list[tuple[str, str]]:
    """NAME and what it stands for. ValueError for a system without a name, or two of one name."""
    pairs = [tuple(text.split("=", 1)) for text in systems]
    names = [pair[0] for pair in pairs]
    if any(len(pair) != 2 for pair in pairs) or len(set(names)) != len(names):
        raise ValueError(f"systems are NAME=WEIGHTS, each name once, got {systems}")
    return [(name, rest) for name, rest in pairs]


def system_of(text: str, options: argparse.Namespace) -> Rollout:
    """The weights of ``WEIGHTS?FIELD=VALUE&…``, sampled so."""
    weights, _, fields = text.partition("?")
    asked = parse_options(fields)
    if "precision" in asked:
        options = argparse.Namespace(**{**vars(options), "precision": asked.pop("precision")})
    rollout = Rollout.load(weights, options)
    request = rollout.request.changed(**asked)
    check_settings(request)
    return dataclasses.replace(rollout, request=request)


def pair_of(text: str, systems: Mapping[str, Rollout]) -> tuple[str, str]:
    """Both systems of ``A:B``. ValueError for a name that is none."""
    first, _, second = text.partition(":")
    if first not in systems or second not in systems:
        raise ValueError(f"--pairs {text}: the systems are {', '.join(systems)}")
    return first, second
