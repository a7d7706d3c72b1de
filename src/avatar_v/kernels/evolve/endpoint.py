"""Candidates from a model behind any endpoint of OpenAI's form (POST …/chat/completions).

What it answers is another's: it is read within bounds, one block of Python is taken out of it, and
that runs in the sandbox alone. The key goes to the named address only; redirects are not followed.
"""

import http.client
import inspect
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from avatar_v.base.outside import parse_json
from avatar_v.kernels import norm, residual
from avatar_v.kernels.evolve import layout
from avatar_v.kernels.evolve.archive import Record
from avatar_v.kernels.evolve.islands import Proposal
from avatar_v.kernels.evolve.spec import Spec

MOST_ANSWER = 1 << 20
MOST_CODE = 50_000
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
LOCAL = ("localhost", "127.0.0.1", "::1")
TIMEOUT_S = 300


class _Unmoved(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Endpoint:
    """``url`` ends before /chat/completions. ValueError for one that is not https, but on this
    machine http will do."""

    def __init__(self, url: str, model: str, key: str, spec: Spec) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
            raise ValueError(f"--endpoint: expected https://…, or http on this machine, got {url}")
        self._url, self._model, self._key = url.rstrip("/") + "/chat/completions", model, key
        self._task, self._opener = task(spec), urllib.request.build_opener(_Unmoved)

    def __call__(self, parent: Record | None, failed: Sequence[Record]) -> Proposal:
        """An answer that holds no code is a refused proposal, whose reason is told to the next
        question. OSError for an endpoint that cannot be reached, whose search can be resumed."""
        words, index = [self._task], -1
        if parent is not None:
            index = parent.index
            of = f"{parent.speedup:.3f} ({parent.low:.3f} to {parent.high:.3f})"
            words.append(f"The baseline's time over this one's is {of}:")
            words.append(f"```python\n{parent.code}\n```")
        words += [f"Failed before ({r.status}): {r.reason[-600:]}" for r in failed]
        try:
            code = code_in(self._answer("\n\n".join(words)))
        except ValueError as error:
            return Proposal("", "endpoint", index, refused=str(error))
        return Proposal(code, "endpoint", index)

    def _answer(self, words: str) -> bytes:
        body = {"model": self._model, "messages": [{"role": "user", "content": words}]}
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                data = reply.read(MOST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            raise OSError(f"the endpoint answers {error.code} {error.reason}") from None
        except http.client.HTTPException as error:
            raise OSError(f"the endpoint does not speak HTTP: {error!r}") from None
        if len(data) > MOST_ANSWER:
            raise ValueError(f"an answer of more than {MOST_ANSWER:,} bytes")
        return data


def code_in(answer: bytes) -> str:
    """The first block of Python in it. ValueError for an answer that has none."""
    values = parse_json(answer, where="the answer")
    try:
        text = values["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("the answer is not in the form of chat completions") from None
    found = BLOCK.search(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("the answer holds no block of Python")
    code = found[1]
    if len(code) > MOST_CODE or "def build(" not in code:
        raise ValueError(f"expected at most {MOST_CODE:,} characters that define build(scope)")
    try:
        code.encode()
    except UnicodeEncodeError:
        raise ValueError("the answer is no text") from None
    return code


def task(spec: Spec) -> str:
    """What is asked for, with the scope's own text."""
    module = norm if "rotate" in spec.scope else residual
    _, given, results = layout.scope_of(spec)
    takes, gives = (
        ", ".join(f"{x.dtype} {list(x.shape)}" for x in tensors) for tensors in (given, results)
    )
    return (
        f"Write a faster forward of the scope {spec.scope} for device {spec.device}, "
        f"{spec.threads} thread(s). Answer with one block of Python that defines "
        "`build(scope)`: it gets the function of the specification and returns a function of the "
        "same tensors that gives the same results. torch, triton and g++ are there, the network is "
        f"not. Inputs: {takes}. Results: {gives}. A result may differ by {spec.absolute:g} + "
        f"{spec.relative:g} of its size. The inputs must stay as they are; each call has others. "
        f"The specification is in here:\n```python\n{inspect.getsource(module)}\n```"
    )
