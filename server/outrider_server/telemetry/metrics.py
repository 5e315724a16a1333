"""Prometheus metrics, named after vLLM's v1 engine (docs/usage/metrics.md there) with `outrider_` in front.

Labels are bounded: no session, key or text is among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Finish, Verdict
from outrider_server.scheduling.reply_poster import Reply, RequestDone
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.telemetry.observer import ServerObserver, ServerStats, StreamObserver

# Upper bounds of the histograms' buckets.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SESSIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_OF_KEYS = (Reason.NO_KEY, Reason.OUT_OF_SCOPE)
_FINISHED = {Finish.EOS: "stop", Finish.LIMIT: "length", Finish.CONTEXT_FULL: "length", Finish.CANCELLED: "abort"}


class ServerMetrics(ServerObserver, Collector):
    """Counts everything in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._stats: Callable[[], ServerStats] = lambda: ServerStats(0, 0)
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        seconds = partial(histogram, buckets=SECONDS)
        self.streams = gauge("outrider_streams", "Streams that are open.")
        self._refusals = counter("outrider_refusals", "Streams and calls refused.", ["reason"])
        self._of_keys = counter("outrider_auth_failures", "Calls without a key that allows them.")
        self._up = counter("outrider_received_bytes", "Bytes of frames from clients.")
        self._down = counter("outrider_sent_bytes", "Bytes of frames to clients.")
        # Of requests.
        self.running = gauge("outrider_num_requests_running", "Drafts and decodes under way.")
        self.prompt_tokens = counter("outrider_prompt_tokens", "Tokens of context that came.")
        self.tokens = counter("outrider_generation_tokens", "Tokens of verdicts, bonus included.")
        self.verdicts = counter("outrider_verdicts", "Verdicts that were not stale.")
        self.stale = counter("outrider_stale_drafts", "Drafts that guessed wrong, not verified.")
        self.first_token = seconds(
            "outrider_time_to_first_token_seconds", "From a request with context to its first verdict, in the server."
        )
        self.between = seconds(
            "outrider_inter_token_latency_seconds",
            "From one verdict of an answer to its next, network and client included.",
        )
        self.queue = seconds("outrider_request_queue_time_seconds", "A verdict's wait for the model.")
        self.finished = counter("outrider_request_success", "Answers whose end the server saw.", ["finished_reason"])
        self.opened = counter("outrider_sessions_opened", "Sessions opened.", ["resumed"])
        # Of passes.
        self._waiting = gauge("outrider_num_requests_waiting", "Requests that the last pass had no room for.")
        self._rows = histogram("outrider_iteration_tokens_total", "Rows of a pass.", buckets=TOKENS)
        self._prefill = counter("outrider_prefill_rows", "Rows of context without a verdict.")
        self._batch = histogram("outrider_batch_sessions", "Sessions in a pass.", buckets=SESSIONS)
        self._forward = seconds("outrider_pass_seconds", "The target's forward pass.")
        self._tap = seconds("outrider_tap_seconds", "Features of a pass.")
        self._drafts = counter("outrider_spec_decode_num_drafts", "Draft trees verified.")
        self._nodes = counter("outrider_spec_decode_num_draft_tokens", "Nodes of those trees.")
        self._accepted = counter("outrider_spec_decode_num_accepted_tokens", "Accepted nodes.")
        self._by_depth = counter(
            "outrider_spec_decode_num_accepted_tokens_per_pos",
            "Accepted nodes by depth, 0 below the root.",
            ["position"],
        )
        # A series must exist from the start: rate() misses the step from nothing to one.
        for metric, values in (
            (self._refusals, [reason.name.lower() for reason in Reason]),
            (self.finished, _FINISHED.values()),
            (self.opened, ("true", "false")),
        ):
            for value in values:
                metric.labels(value)

    def collect_stats(self, stats: Callable[[], ServerStats]) -> None:
        """Call `stats` at every scrape, in the thread that answers it."""
        self._stats = stats
        self.registry.register(self)

    def stream(self) -> StreamObserver:
        self.streams.inc()
        return StreamMetrics(self)

    def refused(self, reason: Reason) -> None:
        self._refusals.labels(reason.name.lower()).inc()
        if reason in _OF_KEYS:
            self._of_keys.inc()

    def received(self, num_bytes: int) -> None:
        self._up.inc(num_bytes)

    def sent(self, num_bytes: int) -> None:
        self._down.inc(num_bytes)

    def stepped(self, report: StepStats) -> None:
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

    def collect(self) -> Iterator[Metric]:
        """Yield what is computed at each scrape."""
        now = self._stats()
        sessions = GaugeMetricFamily("outrider_sessions", "Sessions that the server keeps.", labels=["state"])
        sessions.add_metric(["active"], now.active)
        sessions.add_metric(["parked"], now.parked)
        yield sessions
        share = now.kv_bytes / now.kv_limit_bytes if now.kv_limit_bytes else 0.0
        yield GaugeMetricFamily("outrider_kv_cache_usage_perc", "Share of the K/V budget in use, 0 to 1.", share)
        yield GaugeMetricFamily("outrider_kv_cache_bytes", "Bytes of K/V and features in use.", now.kv_bytes)
        yield CounterMetricFamily("outrider_num_preemptions", "Sessions evicted for lack of memory.", now.evictions)
        yield GaugeMetricFamily("outrider_kv_swap_bytes", "Host memory with K/V of evicted sessions.", now.swap_bytes)
        yield CounterMetricFamily("outrider_kv_restored_tokens", "Tokens copied back from the host.", now.restored)
        queries, hits = now.prefix_queries, now.prefix_hits
        yield CounterMetricFamily("outrider_prefix_cache_queries", "Context tokens looked up, in tokens.", queries)
        yield CounterMetricFamily("outrider_prefix_cache_hits", "Context tokens found, in tokens.", hits)


class StreamMetrics(StreamObserver):
    """Counts one stream."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._under_way: set[int] = set()
        self._prompted_at: dict[int, float] = {}  # requests with context that have no verdict yet
        self._last_verdict_at: float | None = None  # of the answer under way

    def opened(self, session_id: str, key_id: str, *, resumed: bool) -> None:
        self._metrics.opened.labels(str(resumed).lower()).inc()

    def asked(self, frame: Draft | Decode) -> None:
        self._under_way.add(frame.seq)
        self._metrics.running.inc()
        if frame.context:
            self._metrics.prompt_tokens.inc(len(frame.context) + 1)
            self._prompted_at[frame.seq] = time.monotonic()

    def answered(self, seq: int, answer: Reply) -> None:
        match answer:
            case Verdict(stale=True):
                self._metrics.stale.inc()
            case Verdict():
                self._judged(seq, answer)
            case RequestDone():
                self._under_way.discard(seq)
                self._prompted_at.pop(seq, None)
                self._metrics.running.dec()

    def ended(self, refusal: Refusal | None) -> None:
        self._metrics.running.dec(len(self._under_way))
        self._under_way.clear()
        self._metrics.streams.dec()
        if refusal is not None:
            self._metrics.refused(refusal.reason)

    def _judged(self, seq: int, verdict: Verdict) -> None:
        now, metrics = time.monotonic(), self._metrics
        if (asked_at := self._prompted_at.pop(seq, None)) is not None:
            metrics.first_token.observe(now - asked_at)
        elif self._last_verdict_at is not None:
            metrics.between.observe(now - self._last_verdict_at)
        self._last_verdict_at = now
        metrics.verdicts.inc()
        metrics.tokens.inc(len(verdict.path) + len(verdict.tokens) + (verdict.bonus is not None))
        metrics.queue.observe(verdict.queue_us / 1e6)
        if (reason := _FINISHED.get(verdict.finish)) is not None:
            metrics.finished.labels(reason).inc()
            self._last_verdict_at = None
