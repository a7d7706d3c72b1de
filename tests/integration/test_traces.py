"""Spans of a server: a request, its video and its chunks are one trace, named in the record."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the app's extra is not installed")
pytest.importorskip("opentelemetry.exporter.otlp", reason="the extra traces is not installed")

from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from avatar_v.base import traces
from avatar_v.cli import main
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.request import Request
from avatar_v.serving.admission import Admission
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.traced import Traced
from avatar_v.serving.worker import Worker


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans that are sent, kept here."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.trace_id, "032x")


def test_a_request_its_video_and_its_chunks_are_one_trace(
    written: InMemorySpanExporter, pipe: AvatarPipeline, request_: Request, tmp_path: Path
) -> None:
    store, app = JobStore(tmp_path / "queue.db"), FastAPI()
    person = request_.person
    options = {"reference": person.reference, "audio": person.audio, "num_steps": 1}

    @app.post("/v1/videos/{id_}")
    async def ask(id_: str) -> dict[str, str]:
        how = {"seconds": 1.0, "priority": 0, "admission": Admission()}
        given = {**options, "face_crop": False}
        return {"id": (await asyncio.to_thread(store.ask, "me", given, **how)).id}

    app.add_middleware(Traced)
    for path, status in (("/v1/videos/secret", 200), ("/v1/none", 404), ("/metrics", 404)):
        assert asyncio.run(answered(app, path)) == status
    stop, jobs = threading.Event(), tmp_path / "jobs"
    jobs.mkdir()
    (job,) = store.of_owner("me")
    worker = threading.Thread(target=Worker(store, jobs, {"tiny": pipe}, stop=stop).work)
    worker.start()
    while not (found := store.of_owner("me")[0]).is_over:
        assert worker.is_alive()
        stop.wait(0.1)
    stop.set()
    worker.join()
    assert found.error is None
    record = json.loads((jobs / job.id / "avatar.json").read_text())
    spans = written.get_finished_spans()
    own = [span for span in spans if trace_of(span) == record["trace"]]
    names = [span.name for span in own]
    assert [name for name in names if name != "chunk"] == ["POST /v1/videos/{id_}", "video"]
    assert names.count("chunk") > 2
    (request, video) = (span for span in own if span.name != "chunk")
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert video.parent is not None
    assert request.context is not None
    assert video.parent.span_id == request.context.span_id
    assert [span.name for span in spans if span not in own] == ["POST"]  # of /v1/none
    assert "secret" not in str([span.to_json() for span in spans])


async def answered(app: FastAPI, path: str) -> int:
    """The status of a POST."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"headers": [], "query_string": b"", "http_version": "1.1", "scheme": "http"}
    await app({**scope, "asgi": {"version": "3.0"}}, receive, send)
    return sent[0]["status"]


def test_without_it_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with traces.span("video", None, seconds=1.0) as current:
        assert (current, traces.traceparent(), traces.trace_id()) == (None, None, None)
    assert list(traces.spans("chunk", iter([1, 2]))) == [1, 2]
    assert main(["serve", "--traces", "collector:4318"]) == 2
    assert "--traces is the http address of an OTLP collector" in capsys.readouterr().err
