"""Metrics of the target's passes, counted by the model thread."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider_server.scheduling.step_stats import TickReport
from outrider_server.telemetry.buckets import SECONDS, SESSIONS, TOKENS


class PassMetrics:
    """Batches, times, drafts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge(
            "outrider_num_requests_waiting", "Requests that the last pass had no room for.", registry=registry
        )
        self._rows = Histogram("outrider_iteration_tokens_total", "Rows of a pass.", buckets=TOKENS, registry=registry)
        self._prefill = Counter("outrider_prefill_rows", "Rows of context without a verdict.", registry=registry)
        self._batch = Histogram("outrider_batch_sessions", "Sessions in a pass.", buckets=SESSIONS, registry=registry)
        self._forward = Histogram(
            "outrider_pass_seconds", "The target's forward pass.", buckets=SECONDS, registry=registry
        )
        self._tap = Histogram("outrider_tap_seconds", "Features of a pass.", buckets=SECONDS, registry=registry)
        self._drafts = Counter("outrider_spec_decode_num_drafts", "Draft trees verified.", registry=registry)
        self._nodes = Counter("outrider_spec_decode_num_draft_tokens", "Nodes of those trees.", registry=registry)
        self._accepted = Counter("outrider_spec_decode_num_accepted_tokens", "Accepted nodes.", registry=registry)
        self._by_depth = Counter(
            "outrider_spec_decode_num_accepted_tokens_per_pos",
            "Accepted nodes by depth, 0 below the root.",
            ["position"],
            registry=registry,
        )

    def take(self, report: TickReport) -> None:
        self._waiting.set(report.waiting)
        self._rows.observe(report.rows)
        self._prefill.inc(report.prefill_rows)
        self._batch.observe(report.sessions)
        self._forward.observe(report.forward_s)
        self._tap.observe(report.tap_s)
        for num_nodes, num_accepted in report.trees:
            self._drafts.inc()
            self._nodes.inc(num_nodes)
            self._accepted.inc(num_accepted)
            for position in range(num_accepted):
                self._by_depth.labels(position).inc()
