"""FeaturePart: what one source says of clips with their sound, as rows of numbers.

A recipe names those of a preference model by their paths (recipes/critic_preference.yaml).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jaxtyping import Bool, Float, Int
from torch import Tensor

Video = Float[Tensor, "b f 3 h w"]


class FeaturePart(ABC):
    """A callable; no network in it is trained."""

    config: Mapping[str, str | int | tuple[str, ...]]
    """The arguments that build the same part again, named as in features.FeatureSources."""

    @property
    @abstractmethod
    def num(self) -> int:
        """Numbers in a row."""

    @abstractmethod
    def hash(self) -> str:
        """12 hex digits that change with any of its networks."""

    @abstractmethod
    def __call__(
        self,
        frames: Video,
        audio: Float[Tensor, "b s"],
        portrait: Float[Tensor, "c k 3 _h _w"],
        own_motion: Float[Tensor, "c r m"],
        own_valid: Bool[Tensor, "c r"],
        condition: Int[Tensor, " b"],
    ) -> Float[Tensor, "b d"]:
        """Rows of clips in [-1, 1]. ``portrait`` and ``own_motion``, which is known where
        ``own_valid``, show the person of each condition elsewhere."""
