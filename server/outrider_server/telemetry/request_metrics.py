"""Metrics of streams and their requests, counted on the event loop."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Finish, Verdict
from outrider_server.scheduling.request import Answer, Done
from outrider_server.telemetry.buckets import SECONDS
from outrider_server.telemetry.observer import StreamWatch

_FINISHED = {Finish.EOS: "stop", Finish.LIMIT: "length", Finish.CONTEXT_FULL: "length", Finish.CANCELLED: "abort"}


class RequestMetrics:
    """Of all streams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("outrider_num_requests_running", "Drafts and decodes under way.", registry=registry)
        self.prompt_tokens = Counter("outrider_prompt_tokens", "Tokens of context that came.", registry=registry)
        self.tokens = Counter("outrider_generation_tokens", "Tokens of verdicts, bonus included.", registry=registry)
        self.verdicts = Counter("outrider_verdicts", "Verdicts that were not stale.", registry=registry)
        self.stale = Counter("outrider_stale_drafts", "Drafts that guessed wrong, not verified.", registry=registry)
        self.first_token = Histogram(
            "outrider_time_to_first_token_seconds",
            "From a request with context to its first verdict, in the server.",
            buckets=SECONDS,
            registry=registry,
        )
        self.between = Histogram(
            "outrider_inter_token_latency_seconds",
            "From one verdict of an answer to its next, network and client included.",
            buckets=SECONDS,
            registry=registry,
        )
        self.queue = Histogram(
            "outrider_request_queue_time_seconds", "A verdict's wait for the model.", buckets=SECONDS, registry=registry
        )
        self.finished = Counter(
            "outrider_request_success", "Answers whose end the server saw.", ["finished_reason"], registry=registry
        )
        self.opened = Counter("outrider_sessions_opened", "Sessions opened.", ["resumed"], registry=registry)
        for reason in set(_FINISHED.values()):
            self.finished.labels(reason)  # there from the start, so that a rate sees the first one
        for resumed in ("true", "false"):
            self.opened.labels(resumed)


class StreamMetrics(StreamWatch):
    """Of one stream."""

    def __init__(
        self, metrics: RequestMetrics, clock: Callable[[], float], when_ended: Callable[[Reason | None], None]
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._when_ended = when_ended
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
            self._prompted_at[frame.seq] = self._clock()

    def answered(self, seq: int, answer: Answer) -> None:
        match answer:
            case Verdict(stale=True):
                self._metrics.stale.inc()
            case Verdict():
                self._judged(seq, answer)
            case Done():
                self._under_way.discard(seq)
                self._prompted_at.pop(seq, None)
                self._metrics.running.dec()

    def ended(self, refusal: Refusal | None) -> None:
        self._metrics.running.dec(len(self._under_way))
        self._under_way.clear()
        self._when_ended(None if refusal is None else refusal.reason)

    def _judged(self, seq: int, verdict: Verdict) -> None:
        now, metrics = self._clock(), self._metrics
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
