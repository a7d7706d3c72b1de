"""The base of all scores: ``score(clip) -> values``."""

import functools
import inspect
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from avatar_v.scoring.values import Faces, ScoreOutput, Values

if TYPE_CHECKING:
    from avatar_v.scoring.clip import ScoredClip

NO_WEIGHTS = "none"
"""Hash of a measure that is a formula."""
DRAWN: tuple[Faces, ...] = ("drawn",)
REAL: tuple[Faces, ...] = ("real",)
ANY: tuple[Faces, ...] = ("drawn", "real")


@runtime_checkable
class Judge(Protocol):
    """A frozen network, or what judges by it."""

    def hash(self) -> str: ...


J = TypeVar("J", bound=Judge)


class Scorer(ABC):
    """Judges clips one by one. Subclasses give the class variables and `score`."""

    name: ClassVar[str]
    version: ClassVar[int]  # raise it when the numbers change: caches hold it
    judge: ClassVar[str]  # detector and network, in words
    faces: ClassVar[tuple[Faces, ...]]
    outputs: ClassVar[tuple[ScoreOutput, ...]]
    needs_weights: ClassVar[str] = ""  # what --weights NAME=PATH gives; "": all ships
    reads_timing: ClassVar[bool] = False  # what the system reports is part of what is measured

    @abstractmethod
    def score(self, clip: "ScoredClip") -> Values:
        """Judge one clip; ValueError says why it cannot be judged."""

    @property
    def weights(self) -> str:
        """The hash of what judges."""
        return NO_WEIGHTS

    def hash(self) -> str:
        """Changes with the scorer and with what judges in it."""
        return f"{self.name} {self.version} {self.weights}"


class NetworkScorer(Scorer, Generic[J]):
    """A scorer whose ``critic`` is a network."""

    critic: J

    @functools.cached_property
    def weights(self) -> str:
        """Computed once: judges are frozen."""
        return self.critic.hash()


def failure(scorer: Scorer, error: Exception) -> str:
    """An error that no reason was given for, in words, and where in the scorer's file it was."""
    file = inspect.getfile(type(scorer))
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"
