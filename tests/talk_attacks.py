"""What a client of a conversation may not send, and how its connection ends then."""

import io
import json
import wave

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from page_site import PATIENCE_S

PACKET = bytes(1280)  # 40 ms


def wav(num: int) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(2 * num))
    return data.getvalue()


ATTACKS: dict[str, tuple[bytes | str, int, str]] = {
    "a text": ("hello", 1008, "A message is not known"),
    "NaN": ('{"interrupt": NaN}', 1008, "A message is not known"),
    "no text to say": ('{"say": 7}', 1008, "A message is not known"),
    "deep": ("[" * 10_000, 1008, "A message is not known"),
    "an unknown field": ('{"path": "/etc/passwd"}', 1008, "A message is not known"),
    "a long prompt": (json.dumps({"prompt": "x" * 300}), 1008, "a prompt may have 256 bytes"),
    "half a sample": (b"x" * 641, 1008, "A message has 641 bytes"),
    "nothing": (b"", 1008, "A message has 0 bytes"),
    "a file": (wav(100), 1008, "The sound begins as a WAV file"),
    "too much": (bytes(2**16 + 2), 1009, ""),
    "very much": (bytes(2**22), 1009, ""),  # torn off, as a rule: nobody reads to its end
}
"""Each message, the code of the end, and words of the error before it."""
REFUSED: dict[str, str] = {
    "": "has no words",
    "x" * 2_001: "at most 2,000 characters, got 2,001",
    "yes\0": "has no control characters",
    "We are 10.": "English words, and not '10'",
    "\u202e\u0645": "English words, and not",
}
"""Each text that is not said, and words of the refusal."""


def refusals(socket: ClientConnection) -> list[str]:
    """What of `REFUSED` comes back otherwise than expected."""
    wrong = []
    asked = [(text, json.dumps({"say": text}), words) for text, words in REFUSED.items()]
    asked.append(("listen", '{"listen": true}', "nobody nods"))  # at what these weights are
    for text, message, words in asked:
        socket.send(message)
        while isinstance(told := socket.recv(timeout=PATIENCE_S), bytes):
            socket.send(PACKET)
        wrong += [f"{text[:9]!r}: {told}"] * (words not in json.loads(told).get("refused", ""))
    return wrong


def end_of(socket: ClientConnection, message: bytes | str) -> tuple[int, str]:
    """The code that a connection is closed with behind a message, and the last text before."""
    words = ""
    try:
        socket.send(message)
        while True:
            if isinstance(piece := socket.recv(timeout=PATIENCE_S), str):
                words = json.loads(piece)["error"]
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 0, words
