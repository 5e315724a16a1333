"""Metrics as Prometheus would fetch them, beside what the client counted itself; and traces, in a collector."""

import asyncio
import json
import re
import sys
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from typer.testing import CliRunner
from watched import PROMPT, client_of, scraped, server_config

from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_server.cli.app import app
from outrider_server.config.config import SecurityConfig, TelemetryConfig
from outrider_server.rpc.server import Server
from outrider_server.telemetry.reporter import TelemetryReporter

ROOT = Path(__file__).parents[3]
METRICS = TelemetryConfig(metrics_port=0)
QUANTITIES = ("_total", "_sum", "_bucket", "_count", "_created")


async def settled(server: Server, verdicts: int) -> dict:
    """The metrics, once the engine thread has reported its last pass; a verdict leaves before that."""
    async with asyncio.timeout(60):
        while True:
            samples = await scraped(server)
            if samples["outrider_iteration_tokens_total_count"][()] >= verdicts and not samples["outrider_streams"][()]:
                return samples


async def test_they_agree_with_what_the_client_counted():
    async with Server.build(server_config(telemetry=METRICS)) as server:
        async with client_of(server) as client:
            statistics = (await client.complete(PROMPT)).statistics
        samples = await settled(server, statistics.target_calls)
    up, down = statistics.bytes_up, statistics.bytes_down
    one = {name: values[()] for name, values in samples.items() if () in values}
    drafts = sum(statistics.acceptance_histogram)
    accepted = sum(k * count for k, count in enumerate(statistics.acceptance_histogram))
    assert drafts > 1
    assert accepted > 1
    assert one["outrider_spec_decode_num_drafts_total"] == drafts
    assert one["outrider_spec_decode_num_accepted_tokens_total"] == accepted
    nodes = one["outrider_spec_decode_num_draft_tokens_total"]
    assert accepted / nodes == pytest.approx(statistics.draft_acceptance_rate)
    by_depth = samples["outrider_spec_decode_num_accepted_tokens_per_pos_total"]
    reached = [sum(statistics.acceptance_histogram[k + 1 :]) for k in range(len(statistics.acceptance_histogram) - 1)]
    assert [by_depth[("position", str(k)),] for k in range(len(by_depth))] == reached
    assert one["outrider_verdicts_total"] == statistics.target_calls
    assert one["outrider_generation_tokens_total"] >= statistics.new_tokens
    assert one["outrider_prompt_tokens_total"] == len(PROMPT)
    assert one["outrider_time_to_first_token_seconds_count"] == 1
    assert one["outrider_inter_token_latency_seconds_count"] == statistics.target_calls - 1
    assert one["outrider_request_queue_time_seconds_count"] == statistics.target_calls
    assert one["outrider_num_requests_running"] == one["outrider_num_requests_waiting"] == 0
    assert one["outrider_iteration_tokens_total_sum"] == len(PROMPT) - 1 + statistics.target_calls + nodes
    assert one["outrider_received_bytes_total"] >= up > 0
    assert one["outrider_sent_bytes_total"] >= down > 0
    assert samples["outrider_sessions_opened_total"] == {(("resumed", "false"),): 1, (("resumed", "true"),): 0}


async def test_calls_without_a_key_are_counted(tmp_path):
    keys = tmp_path / "keys.toml"
    assert CliRunner().invoke(app, ["keys", "add", "phone", "--keys", str(keys)]).exit_code == 0
    async with Server.build(server_config(telemetry=METRICS, security=SecurityConfig(keys=keys))) as server:
        with pytest.raises(Refusal, match="needs a key"):
            async with client_of(server) as client:
                await client.complete(PROMPT)
        samples = await scraped(server)
    assert samples["outrider_auth_failures_total"][()] == samples["outrider_refusals_total"][("reason", "no_key"),] >= 1
    assert "phone" not in str(samples)


async def test_all_that_is_drawn_alerted_and_documented_exists():
    async with Server.build(server_config(telemetry=METRICS)) as server:
        async with client_of(server) as client:
            await client.complete(PROMPT)
        server.reporter.observer.refused(Reason.SERVER_FULL)
        there = set(await scraped(server))
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    drawn = set(re.findall(r"outrider_\w+", queries))
    assert len(drawn) > 20
    assert drawn <= there
    alerts = (ROOT / "deploy" / "prometheus-alerts.yml").read_text()
    assert set(re.findall(r"\boutrider_\w+", alerts)) <= there
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"^\| `(outrider_\w+)`", page, re.MULTILINE))
    families = {re.sub(rf"({'|'.join(QUANTITIES)})$", "", name) for name in there}
    assert {re.sub(r"_total$", "", name) for name in documented} == {re.sub(r"_total$", "", name) for name in families}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list = []
        self.services: set[str] = set()

    def Export(self, request, context):
        for of_resource in request.resource_spans:
            about = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            self.services.add(about["service.name"])
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
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
    names = ("stream", "draft", "verify", "pass")
    streams, drafts, verified, passes = ([span for span in collector.spans if span.name == name] for name in names)
    assert [len(each) for each in (streams, drafts, verified, passes)] == [1, calls, calls, calls]
    assert {span.parent_span_id for span in drafts} == {streams[0].span_id}
    assert {span.parent_span_id for span in verified} == {span.span_id for span in drafts}


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(UsageError, match=r"pip install 'outrider\[otel\]'"):
        TelemetryReporter(TelemetryConfig(otlp_endpoint="http://127.0.0.1:4317"))
