"""What writer.py asks of an output: one PyAV container, and an end in every case."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from av.container import OutputContainer

from avatar_v.types import FRAME_RATE_HZ

SEGMENT_S = 1
"""Of HLS, and of the fragments on stdout: what a kill can lose, and a player has to wait for."""


class Output(ABC):
    """The writer's thread opens it, and any thread may interrupt. By default one that is watched
    while it grows: no frame waits in the encoder, and every second begins with a key frame."""

    x264: Mapping[str, str] = MappingProxyType({"tune": "zerolatency", "sc_threshold": "0"})
    key_frame_every: int | None = SEGMENT_S * FRAME_RATE_HZ
    """Frames; None is as often as x264 likes."""

    def __init__(self, name: str) -> None:
        self.name = name  # in error messages
        self.failure: OSError | None = None  # why bytes did not get out: libav does not always say

    @abstractmethod
    def open(self) -> OutputContainer:
        """A container that takes streams. OSError where the output cannot be written to."""

    def finish(self) -> None:  # noqa: B027 (an output without an end of its own)
        """The container is closed and the video whole. OSError if it did not arrive."""

    def abandon(self) -> None:  # noqa: B027
        """The last call, always: drop what is not whole, and wait for nobody."""

    def interrupt(self) -> None:  # noqa: B027
        """Make a write that waits for the consumer fail; a disk does not wait for anybody."""
