"""The seam through which a video's tokens are spread over several ranks (parallel/sequence.py).

A DiT with a ``spread`` computes with its rank's share of the tokens, and with its rank's heads in
attention; the DiT itself knows no ranks.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from avatar_v.models.attention import Core, Heads, attend_self


class Cores(NamedTuple):
    """The cores of the streams of a video: of its own tokens, and of its motion tokens."""

    video: Core = attend_self
    motion: Core = attend_self


ALONE = Cores()
"""Those of one device."""


@runtime_checkable
class Shares(Protocol):
    """One video's tokens over the ranks of a sequence group (parallel/sequence.py)."""

    @property
    def cores(self) -> Cores: ...

    def own(self, x: Float[Tensor, "b l n d"]) -> Float[Tensor, "b l m d"]:
        """This rank's tokens of every frame."""
        ...

    def whole(self, x: Float[Tensor, "b l m d"]) -> Float[Tensor, "b l n d"]:
        """The tokens of all ranks."""
        ...


@runtime_checkable
class Spread(Protocol):
    """A sequence group, as the DiT knows it (parallel/sequence.py)."""

    def of(self, num_frames: int, num_tokens: int, *, keep_keys: bool) -> Shares:
        """The shares in a video of so many latent frames, and tokens in each of them."""
        ...

    def own_heads(self, x: Heads) -> Heads:
        """The heads that this rank attends with."""
        ...
