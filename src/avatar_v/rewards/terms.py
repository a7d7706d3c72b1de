"""Rewards by dotted path, as a recipe names them, and what they say of a batch of samples.

A reward is a callable ``(frames, audio, reference, motion, **columns)`` that gives a float for each
sample, a float for each latent frame "b l" (local credit), or None: the convention of trl's GRPO
trainer with a person's media in the place of words. A class is constructed with its options, a
function gets them as keywords. What a reward cannot say (None, NaN, an exception) is a missing
value: it is logged, and ends no run. Those that come along are in shipped.py.
"""

import functools
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.critics.frozen import Critic
from avatar_v.scoring.scorer import Judge, Scorer
from avatar_v.types import Batch, num_latents

Video = Float[Tensor, "b f 3 h w"]
NUMBERS = re.compile(r"\d+")
Reward = Callable[..., "Tensor | Sequence[float | None] | RewardValues | None"]


@dataclass(frozen=True)
class RewardTerm:
    """One reward of a recipe."""

    path: str  # of a function or class, e.g. avatar_v.rewards.shipped.blinks
    weight: float = 1.0  # of its advantages in the sum of all
    by_spread: bool = True
    """Whether a group's rewards are divided by their spread; False keeps the reward's own scale,
    so that it fades as it is fulfilled."""
    credit: tuple[str, ...] = ()
    """What of a sample the reward is about, and whose density earns it: names of motion's
    components, or "face" and "mouth" of video; none is everything."""
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""  # in logs; "" is the last part of the path, or the output of a scorer

    def __post_init__(self) -> None:
        checks.weight("weight", self.weight)
        if not all(part.isidentifier() for part in self.path.split(".")) or "." not in self.path:
            raise ValueError(f"path is package.module.name of a reward, got {self.path!r}")

    @property
    def label(self) -> str:
        scorer = self.options.get("scorer")  # of scored.Scored
        said = scorer and (self.options.get("output") or scorer)
        return self.name or str(said or self.path).rpartition(".")[2].lower()


@dataclass(frozen=True)
class RewardSamples:
    """Samples of some conditions for rewards to score, with the part that was given clean."""

    frames: Video | None  # in [-1, 1]; None where motion alone is made
    audio: Float[Tensor, "b s"]  # of these frames, 640 samples each
    reference: Batch | None  # the person's other clip, a row for each condition
    motion: Float[Tensor, "b f m"]  # in the units of MOTION_NAMES; f = 4 l - 3
    condition: Int[Tensor, " b"]  # the row of each sample in what has a row for each condition
    num_given: int  # latent frames at the beginning that no sample made
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def num_latents(self) -> int:
        return num_latents(self.motion.shape[1])


@dataclass(frozen=True)
class RewardValues:
    """Values of a reward, and why the first of those that are missing is."""

    values: Float[Tensor, "b *l"]
    why: str


class NothingRewarded(ValueError):
    """No reward says anything of any sample of a batch."""


class Rewards:
    """The rewards of a recipe, loaded. ValueError for a path that leads to no callable, for options
    that do not fit, for two of one name, and for a held-out judge unless they only ``watch``; a
    reward's constructor may have its own."""

    def __init__(self, terms: Sequence[RewardTerm], *, watch: bool = False) -> None:
        labels = [term.label for term in terms]
        if not terms or len(set(labels)) != len(labels):
            raise ValueError(f"rewards are one or more, each of its own name, got {labels}")
        self.terms = tuple(terms)
        self._functions = {term.label: load_reward(term) for term in terms}
        self.judges = {name: judges_of(function) for name, function in self._functions.items()}
        for name, function in () if watch else self._functions.items():
            refuse_held_out(name, function)
        self._warned: set[str] = set()

    @torch.no_grad()
    def __call__(self, samples: RewardSamples) -> dict[str, Float[Tensor, "b *l"]]:
        """The raw values of every reward, NaN where one is missing. NothingRewarded, with all
        reasons, where no reward has a value for any sample."""
        values, reasons = {}, []
        for name, function in self._functions.items():
            values[name], reason = _score(function, samples)
            if reason is None:
                continue
            reasons.append(f"{name}: {reason}")
            kind = NUMBERS.sub("", reasons[-1])  # not again for each batch that lacks some values
            if kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(f"reward {reasons[-1]}; counted as missing", stacklevel=2)
        if not any(bool(known(value).any()) for value in values.values()):
            raise NothingRewarded(f"no reward has a value for any sample ({'; '.join(reasons)})")
        return values


def known(values: Float[Tensor, "b *l"]) -> Bool[Tensor, "b *l"]:
    """Which values are not missing."""
    return torch.isfinite(values)


def judges_of(function: object) -> list[Judge]:
    """The networks and the scorers among the attributes of a reward, and among those of a scorer
    there. What lies deeper, as in a list, is not seen."""
    parts = list(getattr(function, "__dict__", {}).values())
    parts += function.children() if isinstance(function, nn.Module) else ()
    held = [part for part in parts if isinstance(part, Judge)]
    return [*held, *(one for part in held if isinstance(part, Scorer) for one in judges_of(part))]


def refuse_held_out(name: str, function: object) -> None:
    """ValueError for a reward, or a scorer, with a critic that must only score."""
    if any(isinstance(one, Critic) and one.held_out for one in judges_of(function)):
        raise ValueError(f"{name} has a critic that is held out: it is never a loss or a reward")


def load_reward(term: RewardTerm) -> Reward:
    """The callable of a term's path, with its options."""
    module, _, name = term.path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward {term.path}: cannot be imported ({error})") from error
    try:
        if inspect.isclass(found):
            found = found(**term.options)
        elif callable(found):
            inspect.signature(found).bind_partial(**term.options)
            found = functools.partial(found, **term.options)
    except TypeError as error:
        raise ValueError(f"reward {term.path}: options do not fit ({error})") from error
    if not callable(found):
        raise ValueError(f"reward {term.path} is no function and no class of callables")
    return cast(Reward, found)


def _score(function: Reward, samples: RewardSamples) -> tuple[Float[Tensor, "b *l"], str | None]:
    """The values, and why some of them are missing."""
    num, device = len(samples.motion), samples.motion.device
    nothing = torch.full((num,), torch.nan, device=device)
    try:
        given = function(
            samples.frames,
            samples.audio,
            samples.reference,
            samples.motion,
            condition=samples.condition,
            num_given=samples.num_given,
            **samples.columns,
        )
        if given is None:
            return nothing, "it gave None"
        why = ""
        if isinstance(given, RewardValues):
            given, why = given.values, f" ({given.why})" if given.why else ""
        if not isinstance(given, Tensor):
            given = torch.tensor([torch.nan if x is None else float(x) for x in given])
        if given.shape not in ((num,), (num, samples.num_latents)):
            raise ValueError(
                f"it gave values of shape {tuple(given.shape)}, expected ({num},) or "
                f"({num}, {samples.num_latents})"
            )
    except Exception as error:  # whatever it is: a judge that fails must not end a training
        return nothing, f"{type(error).__name__}: {error}"
    values = torch.where(known(given.float()), given.float(), torch.nan).to(device)
    num_missing = int((~known(values)).sum())
    return values, f"{num_missing} of {values.numel()} values{why}" if num_missing else None
