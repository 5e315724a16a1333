"""Made-up answers of the network bench."""

from outrider_bench.network.link_endpoint import LinkTraffic
from outrider_bench.network.timed_answer import Arrival, TimedAnswer, VerdictRecord
from outrider_client.core.statistics import Statistics


def answer(tokens_a_reply: int = 4, drafted: bool = True, told: Statistics | None = None, gap_ms=80.0) -> TimedAnswer:
    """First token after 100 ms, then five replies `gap_ms` apart."""
    arrivals = [Arrival(100.0, 1), *(Arrival(100 + gap_ms * number, tokens_a_reply) for number in range(1, 6))]
    replies = [
        VerdictRecord(1, False, 50.0, 0.0),
        *(VerdictRecord(tokens_a_reply, drafted, 33.0, 7.0) for _ in range(5)),
    ]
    tokens = range(1 + 5 * tokens_a_reply)
    return TimedAnswer(
        tuple(tokens), tuple(arrivals), tuple(replies), told or Statistics(), LinkTraffic(12, 18, 1200, 18000)
    )
