"""Texts of a conversation: each is said by its voice while it goes on, one behind the other.

A thread makes their sound in pieces and hands it to the feed (feed.py), which mixes it with nothing
and ends it where somebody speaks. The level of a piece is that of all that the voice has said in
the last half minute, so a whole text comes to -23 LUFS about as near as EBU R 128 asks of live
programmes, 1 LU.
"""

import unicodedata
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.engines.script import checked_text
from avatar_v.engines.voice import VoiceEngine
from avatar_v.inputs.feed import SoundFeed
from avatar_v.inputs.live import GAIN_WINDOW_S
from avatar_v.media.sound import loudness_gain
from avatar_v.types import SAMPLE_RATE_HZ

MOST_LETTERS = 2_000
"""Of a text, signs and spaces too: some three minutes."""
MOST_TEXTS = 16
"""That wait or are said."""


def checked_said(text: str) -> str:
    """The text. ValueError for one without words, with more than `MOST_LETTERS`, or with control
    characters or halves of a character."""
    checked_text(text, most=MOST_LETTERS)
    odd = [x for x in text if unicodedata.category(x) in ("Cc", "Cs") and x not in "\n\r\t"]
    if odd:
        raise ValueError(f"--script: a text has no control characters, got {odd[0]!a}")
    return text


class Speaker:
    """``voice`` says texts into ``feed``, each with ``seed``. `close` ends its thread, behind the
    piece that it makes."""

    def __init__(self, voice: VoiceEngine, feed: SoundFeed, seed: int) -> None:
        self._voice, self._feed, self._seed = voice, feed, seed
        self._thread = ThreadPoolExecutor(1, "voice")
        self._said: list[Future[float]] = []  # texts that wait, and the one at hand
        self._heard = torch.zeros(0)  # what the level is measured on, as the voice makes it

    def say(self, text: str) -> "Future[float]":
        """A text behind those that wait; at once. The result is told when all of its sound has been
        handed over: its seconds. CancelledError where it was interrupted, ValueError where the
        voice makes nothing of it. ValueError here for a text that the voice cannot say, and for too
        many."""
        self._said = [future for future in self._said if not future.done()]
        if len(self._said) >= MOST_TEXTS:
            raise ValueError(f"{MOST_TEXTS} texts wait to be said already: send more when less do")
        pieces = self._voice.pieces(text, seed=self._seed)
        future = self._thread.submit(self._hand_over, pieces, self._feed.expect())
        self._said.append(future)
        return future

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _hand_over(self, pieces: Iterator[Tensor], turn: int) -> float:
        num = 0
        try:
            while self._feed.say(torch.zeros(0), turn):  # nothing is made for a turn that is over
                if (piece := next(pieces, None)) is None:
                    return num / SAMPLE_RATE_HZ
                num += len(piece)
                self._feed.say(self._levelled(piece), turn)
            raise CancelledError
        finally:
            self._feed.said(turn)

    def _levelled(self, piece: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
        self._heard = torch.cat([self._heard, piece])[-GAIN_WINDOW_S * SAMPLE_RATE_HZ :]
        return (piece * loudness_gain(self._heard)).clamp(-1, 1)
