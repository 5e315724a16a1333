"""Traces: which spans there are, how they hang together, and that a collector gets them."""

import asyncio
import sys
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from watched import DRAFTER, PROMPT, TARGET, client_of, server_config

from outrider_drafters.load import load_tap
from outrider_proto.errors import UsageError
from outrider_server.config.telemetry import TelemetryConfig
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier
from outrider_server.telemetry.reporter import TelemetryReporter
from outrider_server.telemetry.traces import Traces


async def test_a_stream_its_requests_and_their_passes():
    exporter = InMemorySpanExporter()
    verifier = Verifier(
        Target.load(str(TARGET)), [load_tap(DRAFTER, TARGET)], observer=Traces(SimpleSpanProcessor(exporter))
    )
    async with Server(verifier) as server:
        async with client_of(server) as client:
            calls = (await client.complete(PROMPT)).statistics.target_calls
        await asyncio.wait_for(server.verifier.drained(), 60)
    spans = exporter.get_finished_spans()
    named = {name: [span for span in spans if span.name == name] for name in ("stream", "draft", "verify", "tap")}
    (stream,) = named["stream"]
    assert len(stream.attributes["session"]) == 8
    assert {span.parent.span_id for span in named["draft"]} == {stream.context.span_id}
    assert len(named["draft"]) == len(named["verify"]) == calls
    drafts = {span.context.span_id for span in named["draft"]}
    assert {span.parent.span_id for span in (*named["verify"], *named["tap"])} <= drafts
    assert {span.context.trace_id for spans in named.values() for span in spans} == {stream.context.trace_id}
    assert sum(span.attributes["accepted"] for span in named["verify"]) > 1
    passes = [span for span in spans if span.name == "pass"]
    assert len(passes) == calls
    assert all(span.end_time >= span.start_time for span in spans)
    assert stream.end_time >= max(span.end_time for span in named["draft"])


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.services: set[str] = set()

    def Export(self, request, context):
        for of_resource in request.resource_spans:
            about = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            self.services.add(about["service.name"])
            self.names += [span.name for scope in of_resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_a_collector_gets_them():
    collector = Collector()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    telemetry = TelemetryConfig(otlp_endpoint=f"http://127.0.0.1:{port}")
    async with Server.build(server_config(telemetry=telemetry)) as server:
        async with client_of(server) as client:
            calls = (await client.complete(PROMPT)).statistics.target_calls
        await asyncio.wait_for(server.verifier.drained(), 60)
    await asyncio.to_thread(grpc_server.stop, None)  # the server's stop has sent what was left
    assert collector.services == {"outrider-server"}
    assert collector.names.count("stream") == 1
    assert collector.names.count("verify") == collector.names.count("pass") == calls


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(UsageError, match=r"pip install 'outrider\[otel\]'"):
        TelemetryReporter(TelemetryConfig(otlp_endpoint="http://127.0.0.1:4317"))
