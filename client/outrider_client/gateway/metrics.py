"""The gateway's Prometheus metrics, named as vLLM names its own. Numbers only, no text."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Cycle, Event, Finished
from outrider_client.core.statistics import Statistics
from outrider_proto.frames import Draft

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_REQUEST_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class GatewayMetrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        # Not the global registry: a second gateway in this process would register the same names.
        registry = self._registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"outrider_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"outrider_{name}", what, buckets=buckets, registry=registry)

        self._drafts = counter("spec_decode_num_drafts", "Draft trees verified by the target.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Nodes of the verified draft trees.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted by the target.")
        self._at_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens, by position.", "position"
        )
        self.finished = counter("request_success", "Requests answered, by finish reason.", "finished_reason")
        self.refused = counter("request_errors", "Requests that failed, by HTTP status.", "status")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens processed.")
        self._tokens = counter("generation_tokens", "Tokens generated.")
        self._unverified = counter("unverified_tokens", "Generated tokens that the target has not verified.")
        self._rolled_back = counter("rolled_back_tokens", "Unverified tokens taken back.")
        self._outages = counter("outages", "Link outages during answers.")
        self._bytes = counter("link_bytes", "Bytes between gateway and server, by direction.", "direction")
        self._first_token = histogram("time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN_S)
        self._between = histogram("inter_token_latency_seconds", "Mean time between tokens of an answer.", _TOKEN_S)
        self._request = histogram("e2e_request_latency_seconds", "Time of a whole request.", _REQUEST_S)
        self._state = Gauge("outrider_link_state", "1 for the link's state, else 0.", ("state",), registry=registry)

    def add_gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value comes from a function, at each scrape."""
        Gauge(f"outrider_{name}", what, registry=self._registry).set_function(value)

    def set_link_state(self, state: LinkState) -> None:
        for each in LinkState:
            self._state.labels(each.value).set(each is state)

    def observe_event(self, event: Event) -> None:
        match event:
            case Cycle(request=Draft(tree=tree), verdict=verdict) if len(tree) and not verdict.stale:
                self._drafts.inc()
                self._draft_tokens.inc(len(tree))
                self._accepted.inc(len(verdict.path))
                for position in range(len(verdict.path)):
                    self._at_position.labels(str(position)).inc()
            case Finished(reason=reason, statistics=statistics):
                self.observe_statistics(statistics, is_private=reason == "private")

    def observe_statistics(self, statistics: Statistics, *, is_private: bool) -> None:
        """Count an answer's statistics. `observe_event` does so for an answer that ends by itself."""
        self._bytes.labels("up").inc(statistics.bytes_up)
        self._bytes.labels("down").inc(statistics.bytes_down)
        if is_private:
            return
        self._unverified.inc(statistics.unverified)
        self._rolled_back.inc(statistics.rolled_back)
        self._outages.inc(statistics.outages)
        self._first_token.observe(statistics.time_to_first_token_ms / 1e3)
        if statistics.new_tokens > 1:
            self._between.observe(statistics.mean_itl_ms / 1e3)

    def observe_request(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """Count the tokens and time of a request that holds nothing private."""
        self._prompt_tokens.inc(prompt_tokens)
        self._tokens.inc(tokens)
        self._request.observe(seconds)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
