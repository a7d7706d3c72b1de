"""A conversation over a WebSocket: sound comes in and video goes out.

In: binary messages of 16-bit little-endian samples, mono at 16 kHz; as text
``{"interrupt": true}``, ``{"prompt": "…"}``, ``{"say": "…"}``, or ``{"listen": true}``, after which
the person listens to the sound and does not say it, until ``{"listen": false}``. Out: pieces of a
fragmented mp4 in binary messages, which together are one file; as text ``{"refused": "…"}`` for
what is not done, ``{"error": "…"}`` before the end by a fault, and ``{"ending_s": 30}`` where the
server is about to end. WebSocket and Media Source Extensions carry it, not WebRTC: one connection
through the page's own port, guard and cookie, no second encoder, no server for addresses, and sound
that is late, but never lost.
"""

import asyncio
import contextlib
import json
import logging
from concurrent.futures import CancelledError

import numpy as np
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from avatar_v.inputs.live import HEADERS
from avatar_v.serving.limits import BROKEN, MAX_PROMPT
from avatar_v.serving.live import IDLE_S, Conversation, Rooms
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.web.connections import MAX_MESSAGE

LOG = logging.getLogger("avatar_v.app")
FORM = (
    "sound is sent as binary messages of 16-bit little-endian samples, mono at "
    f"{SAMPLE_RATE_HZ} Hz, at most {MAX_MESSAGE} bytes each"
)
FAULT, POLICY_CODE, OVER = 1011, 1008, 1000  # of RFC 6455


class Command(BaseModel):
    """A message that is text."""

    model_config = ConfigDict(extra="forbid")
    interrupt: StrictBool = False
    prompt: StrictStr | None = Field(None, max_length=MAX_PROMPT)
    listen: StrictBool | None = None
    say: StrictStr | None = None  # a wrong one ends nothing, so no length is asked for here


class RefusedMessageError(Exception):
    """What a client may not send; its words are told, and the conversation ends."""


async def talk(socket: WebSocket, token: str, held: Conversation, rooms: Rooms) -> None:
    """Hold a conversation that has begun (`Rooms.begin`), and leave its place."""
    try:
        await socket.accept()
        await _talk(socket, held, rooms)
    finally:
        await asyncio.to_thread(rooms.leave, token)


async def _talk(socket: WebSocket, held: Conversation, rooms: Rooms) -> None:
    """Until one side has gone, or a fault, which is told."""
    assert held.session is not None
    assert held.pieces is not None
    parts = (_listen(socket, held, rooms), _send(socket, held), rooms.made(held))
    tasks = [asyncio.create_task(part) for part in parts]
    most_s = rooms.talk_s
    done, _ = await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    held.session.close()
    held.pieces.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    fault = next((task.exception() for task in done if task.exception()), None)
    words, code = None, OVER
    if isinstance(fault, RefusedMessageError):
        words, code = str(fault), POLICY_CODE
    elif isinstance(fault, (ValueError, OSError)):
        words, code = rooms.words(str(fault)), FAULT
        rooms.metrics.failed.inc()
    elif fault is not None:
        LOG.error("a conversation failed", exc_info=fault)
        words, code = BROKEN, FAULT
        rooms.metrics.failed.inc()
    elif not done:
        words = f"A conversation lasts {most_s:g} s at most; begin another one"
    with contextlib.suppress(Exception):  # the client may be gone, or take nothing
        async with asyncio.timeout(1):
            if words is not None:
                await socket.send_text(json.dumps({"error": words}))
            await socket.close(code)


async def _listen(socket: WebSocket, held: Conversation, rooms: Rooms) -> None:
    assert held.session is not None
    is_first = True
    while True:
        try:
            message = await asyncio.wait_for(socket.receive(), IDLE_S)
        except TimeoutError:
            raise RefusedMessageError(f"Nothing was sent for {IDLE_S:g} s") from None
        if message["type"] == "websocket.disconnect":
            return
        if (data := message.get("bytes")) is None:
            await _obey(held, message["text"], rooms)
            continue
        if not data or len(data) % 2:
            raise RefusedMessageError(f"A message has {len(data)} bytes; {FORM}")
        if is_first and data[:4] in HEADERS:
            raise RefusedMessageError(f"The sound begins as a {HEADERS[data[:4]]} file; {FORM}")
        is_first = False
        take = held.session.listen if held.listens else held.session.hear
        take(np.frombuffer(data, "<i2").astype(np.float32) / 2**15)


async def _obey(held: Conversation, text: str, rooms: Rooms) -> None:
    assert held.session is not None
    try:
        command = Command.model_validate_json(text)
    except ValidationError:
        known = 'a text is {"interrupt": true}, {"listen": true}, {"prompt": "…"} or {"say": "…"}'
        raise RefusedMessageError(f"A message is not known: {known}, and {FORM}") from None
    if command.interrupt:
        held.session.interrupt()
    if command.listen is not None:
        try:
            held.session.check_listens()
            held.listens = command.listen
        except ValueError as error:
            _refuse(held, rooms, error)
    if command.prompt is not None:
        try:
            await asyncio.to_thread(held.session.change_prompt, command.prompt)
        except ValueError as error:
            raise RefusedMessageError(rooms.words(str(error))) from None
    if command.say is not None:
        await _say(held, command.say, rooms)


async def _say(held: Conversation, text: str, rooms: Rooms) -> None:
    """Have a text said; what is wrong with it is told, and the conversation goes on."""
    assert held.session is not None
    try:
        said = await asyncio.to_thread(held.session.say, text)
    except ValueError as error:
        _refuse(held, rooms, error)
    else:
        said.add_done_callback(
            lambda said: said.cancelled() or _refuse(held, rooms, said.exception())
        )


def _refuse(held: Conversation, rooms: Rooms, error: BaseException | None) -> None:
    """Tell the client what was not done; the conversation goes on."""
    assert held.pieces is not None
    if isinstance(error, (ValueError, OSError)):
        held.pieces.say(json.dumps({"refused": rooms.words(str(error))}))
    elif error is not None and not isinstance(error, CancelledError):
        LOG.error("a text could not be said", exc_info=error)
        held.pieces.say(json.dumps({"refused": BROKEN}))


async def _send(socket: WebSocket, held: Conversation) -> None:
    assert held.pieces is not None
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            piece = await held.pieces.next()
            if isinstance(piece, str):
                await socket.send_text(piece)
            else:
                await socket.send_bytes(piece)
