"""Prometheus metrics, under the names of vLLM's v1 engine (docs/usage/metrics.md there) where a measure is the same,
with `outrider_` in front. Labels are bounded: no session, key or text is among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider_proto.errors import Reason
from outrider_server.scheduling.step_stats import TickReport
from outrider_server.telemetry.gauges import Census
from outrider_server.telemetry.observer import Observer, StreamWatch
from outrider_server.telemetry.pass_metrics import PassMetrics
from outrider_server.telemetry.request_metrics import RequestMetrics, StreamMetrics

_OF_KEYS = (Reason.NO_KEY, Reason.OUT_OF_SCOPE)


class Metrics(Observer):
    """Counts everything in a registry of its own. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._requests = RequestMetrics(registry)
        self._passes = PassMetrics(registry)
        self._streams = Gauge("outrider_streams", "Streams that are open.", registry=registry)
        self._refusals = Counter("outrider_refusals", "Streams and calls refused.", ["reason"], registry=registry)
        for reason in Reason:
            self._refusals.labels(reason.name.lower())  # there from the start, so that a rate sees the first one
        self._of_keys = Counter("outrider_auth_failures", "Calls without a key that allows them.", registry=registry)
        self._up = Counter("outrider_received_bytes", "Of streams' frames, from clients.", registry=registry)
        self._down = Counter("outrider_sent_bytes", "Of streams' frames, to clients.", registry=registry)

    def count(self, census: Callable[[], Census]) -> None:
        """Have `census` taken at every scrape, in the thread that answers it."""
        self.registry.register(_CensusTaker(census))

    def stream(self) -> StreamWatch:
        self._streams.inc()
        return StreamMetrics(self._requests, self._clock, self._ended)

    def refused(self, reason: Reason) -> None:
        self._refusals.labels(reason.name.lower()).inc()
        if reason in _OF_KEYS:
            self._of_keys.inc()

    def received(self, num_bytes: int) -> None:
        self._up.inc(num_bytes)

    def sent(self, num_bytes: int) -> None:
        self._down.inc(num_bytes)

    def ticked(self, report: TickReport) -> None:
        self._passes.take(report)

    def _ended(self, reason: Reason | None) -> None:
        self._streams.dec()
        if reason is not None:
            self.refused(reason)


class _CensusTaker(Collector):
    """What is counted at each scrape."""

    def __init__(self, census: Callable[[], Census]) -> None:
        self._census = census

    def collect(self) -> Iterator[Metric]:
        now = self._census()
        sessions = GaugeMetricFamily("outrider_sessions", "Sessions that are held.", labels=["state"])
        sessions.add_metric(["active"], now.active)
        sessions.add_metric(["parked"], now.parked)
        yield sessions
        share = now.kv_bytes / now.kv_limit_bytes if now.kv_limit_bytes else 0.0
        yield GaugeMetricFamily("outrider_kv_cache_usage_perc", "Share of the K/V budget in use, 0 to 1.", share)
        yield GaugeMetricFamily("outrider_kv_cache_bytes", "Bytes of K/V and features in use.", now.kv_bytes)
        yield CounterMetricFamily("outrider_num_preemptions", "Sessions evicted for want of room.", now.evictions)
        queries, hits = now.prefix_queries, now.prefix_hits
        yield CounterMetricFamily("outrider_prefix_cache_queries", "Context tokens looked for, in tokens.", queries)
        yield CounterMetricFamily("outrider_prefix_cache_hits", "Of those found, in tokens.", hits)
