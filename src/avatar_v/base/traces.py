"""Traces by OpenTelemetry: a span for each request, video and chunk, off unless it is begun.

Without ``start_traces``, or where ``avatar_v[traces]`` is not installed, every call here is free of
effect. The SDK's own settings (OTEL_… in the environment) hold beside.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from avatar_v import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_T = TypeVar("_T")
_END = object()
_tracer: "Tracer | None" = None


def start_traces(endpoint: str, service: str) -> None:
    """Send spans of this process to an OTLP collector over HTTP, as http://localhost:4318.
    ValueError where OpenTelemetry is not installed, or for no such address."""
    global _tracer
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"--traces is the http address of an OTLP collector, got {endpoint}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(f"this needs {error.name}: pip install 'avatar_v[traces]'") from error
    about = {"service.name": service, "service.version": __version__, "process.pid": os.getpid()}
    provider = TracerProvider(resource=Resource.create(about))
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("avatar_v", __version__)


@contextmanager
def span(name: str, parent: str | None = None, **values: str | float) -> "Iterator[Span | None]":
    """A span for as long as the context lasts, under that of the thread, or under a W3C traceparent
    of another process. An error that passes is written down with it."""
    if _tracer is None:
        yield None
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    above = parent and TraceContextTextMapPropagator().extract({"traceparent": parent})
    named = {f"avatar_v.{key}": value for key, value in values.items()}
    with _tracer.start_as_current_span(name, above or None, attributes=named) as current:
        yield current


def spans(name: str, items: Iterator[_T]) -> Iterator[_T]:
    """The items, with a span for the making of each, and of their end."""
    while True:
        with span(name):
            item: Any = next(items, _END)
        if item is _END:
            return
        yield item


def trace_id() -> str | None:
    """Of the span at hand: 32 hexadecimal digits."""
    given = traceparent()
    return None if given is None else given.split("-")[1]


def traceparent() -> str | None:
    """The span at hand as W3C's traceparent, for another process."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")
