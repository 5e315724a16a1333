"""OpenTelemetry traces: a span for every stream, its requests, their passes and taps; one for every pass of the target.

Exported in batches by the SDK's threads. Needs the extra `otel`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outrider_proto.errors import Refusal, UsageError
from outrider_proto.frames import Decode, Draft, Features, Verdict
from outrider_server.scheduling.reply_poster import Reply, RequestDone
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.telemetry.observer import ServerObserver, StreamObserver

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    Attributes = Mapping[str, int | str]

_SHOWN = 8  # characters of a session's id, as in the log


class Traces(ServerObserver):
    """Makes spans of what the server does; stop() sends what is left."""

    def __init__(self, endpoint: str) -> None:
        """Send spans to an OTLP/gRPC collector, `http://HOST:PORT`.

        Raises UsageError where OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            remedy = "pip install 'outrider[otel]', or leave otlp_endpoint out"
            raise UsageError(f"traces need {error.name}: {remedy}") from error
        exporter = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"))
        self._provider = TracerProvider(resource=Resource.create({"service.name": "outrider-server"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("outrider")

    def stream(self) -> StreamObserver:
        return _StreamSpans(self._tracer)

    def stepped(self, report: StepStats) -> None:
        ended = time.time_ns() - _ns(report.tap_s)
        attributes = {"rows": report.rows, "sessions": report.sessions, "waiting": report.waiting}
        span = self._tracer.start_span("pass", start_time=ended - _ns(report.forward_s), attributes=attributes)
        span.end(ended)

    def stop(self) -> None:
        """Send what is left. Safe to call twice."""
        self._provider.shutdown()


class _StreamSpans(StreamObserver):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._span = tracer.start_span("stream")
        self._requests: dict[int, Span] = {}

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        self._span.set_attributes({"session": session_id[:_SHOWN], "key": key_id, "resumed": resumed})

    def asked(self, frame: Draft | Decode) -> None:
        attributes = {"base_len": frame.base_len, "context": len(frame.context)}
        if isinstance(frame, Draft):
            attributes["nodes"] = len(frame.tree)
        name = "draft" if isinstance(frame, Draft) else "decode"
        self._requests[frame.seq] = self._below(self._span, name, attributes)

    def answered(self, seq: int, answer: Reply) -> None:
        request = self._requests[seq]
        match answer:
            case Verdict():
                self._judged(request, answer)
            case Features() if answer.last:
                self._past(request, "tap", answer.tap_us, {"rows": len(answer.rows)})
            case Refusal():
                request.set_attribute("refusal", answer.reason.name)
            case RequestDone():
                self._requests.pop(seq).end()

    def ended(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._span.set_attribute("refusal", refusal.reason.name)
        for span in (*self._requests.values(), self._span):
            span.end()
        self._requests.clear()

    def _judged(self, request: Span, verdict: Verdict) -> None:
        accepted = len(verdict.path) + len(verdict.tokens)
        attributes: Attributes = {"accepted": accepted, "queue_us": verdict.queue_us, "finish": verdict.finish.name}
        if verdict.stale:
            request.set_attribute("stale", True)
        else:
            self._past(request, "verify", verdict.verify_us, attributes)

    def _past(self, parent: Span, name: str, took_us: int, attributes: Attributes) -> None:
        """Record a span that has just ended, `took_us` after its start."""
        now = time.time_ns()
        self._below(parent, name, attributes, now - 1000 * took_us).end(now)

    def _below(self, parent: Span, name: str, attributes: Attributes, started: int | None = None) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        return self._tracer.start_span(name, context, start_time=started, attributes=attributes)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
