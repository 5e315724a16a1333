"""Counters of the gateway for Prometheus, named as vLLM names its own. Numbers only: nothing of what was said."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Cycle, Event, Finished
from outrider_client.core.statistics import Statistics
from outrider_proto.frames import Draft

__all__ = ["CONTENT_TYPE", "GatewayMetrics"]

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class GatewayMetrics:
    """One gateway's, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"outrider_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"outrider_{name}", what, buckets=buckets, registry=registry)

        self._drafts = counter("spec_decode_num_drafts", "Draft trees that the target has judged.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Nodes of these trees.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Of these, accepted.")
        self._at_position = counter("spec_decode_num_accepted_tokens_per_pos", "Accepted, by depth.", "position")
        self._finished = counter("request_success", "Requests answered, by how it ended.", "finished_reason")
        self._refused = counter("request_errors", "Requests not answered, by HTTP status.", "status")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._tokens = counter("generation_tokens", "Tokens of answers.")
        self._unverified = counter("unverified_tokens", "Tokens of answers that the target has not judged.")
        self._rolled_back = counter("rolled_back_tokens", "Unverified tokens taken back.")
        self._outages = counter("outages", "Times that an answer lost its link.")
        self._bytes = counter("link_bytes", "Between gateway and server.", "direction")
        self._first_token = histogram("time_to_first_token_seconds", "Of a request.", _FIRST_TOKEN_S)
        self._between = histogram("inter_token_latency_seconds", "Mean of an answer.", _TOKEN_S)
        self._request = histogram("e2e_request_latency_seconds", "Of a request.", _REQUEST_S)
        self._gauges = {
            name: Gauge(f"outrider_{name}", what, registry=registry)
            for name, what in (
                ("num_requests_running", "Answers under way."),
                ("num_requests_waiting", "Requests that wait for a session."),
                ("link_rtt_seconds", "Measured round trip to the server."),
            )
        }
        self._state = Gauge("outrider_link_state", "1 for the state of the link.", ("state",), registry=registry)

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """Have a gauge show a value."""
        self._gauges[name].set_function(value)

    def link(self, state: LinkState) -> None:
        for each in LinkState:
            self._state.labels(each.value).set(each is state)

    def took(self, event: Event) -> None:
        """An answer goes on."""
        match event:
            case Cycle(request=Draft(tree=tree), verdict=verdict) if len(tree) and not verdict.stale:
                self._judged(len(tree), len(verdict.path))
            case Finished(reason=reason, statistics=statistics):
                self.ended(statistics, is_private=reason == "private")
            case _:
                pass

    def ended(self, told: Statistics, *, is_private: bool) -> None:
        """What a whole answer cost; `took` says so of one that came to its own end."""
        self._bytes.labels("up").inc(told.bytes_up)
        self._bytes.labels("down").inc(told.bytes_down)
        if not is_private:
            self._measured(told)

    def answered(self, reason: str) -> None:
        self._finished.labels(reason).inc()

    def measured(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """An answer whose prompt may be known by its size."""
        self._prompt_tokens.inc(prompt_tokens)
        self._tokens.inc(tokens)
        self._request.observe(seconds)

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def page(self) -> bytes:
        """In Prometheus' text form."""
        return generate_latest(self._registry)

    def _judged(self, num_nodes: int, num_accepted: int) -> None:
        self._drafts.inc()
        self._draft_tokens.inc(num_nodes)
        self._accepted.inc(num_accepted)
        for position in range(num_accepted):
            self._at_position.labels(str(position)).inc()

    def _measured(self, told: Statistics) -> None:
        self._unverified.inc(told.unverified)
        self._rolled_back.inc(told.rolled_back)
        self._outages.inc(told.outages)
        self._first_token.observe(told.time_to_first_token_ms / 1e3)
        if told.new_tokens > 1:
            self._between.observe(told.mean_itl_ms / 1e3)
