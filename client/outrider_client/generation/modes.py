"""The mode loops: each mode is one short loop over the verbs of Generation.

stop-and-wait  draft ------> verdict, draft ------> verdict
proactive      draft ------> verdict    the draft for this outcome was made meanwhile: it leaves at once
                 outcomes drafted for
pipelined      draft 1 ------------> verdict 1
                    draft 2 ------------> verdict 2     on the likeliest outcome of draft 1; skipped by the server
                         draft 3 ...                    if that did not come true, and one for the outcome that did
                                                        was kept ready here
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from outrider_client.controller.measurements import OnlineMode
from outrider_client.generation.generation import Generation
from outrider_client.generation.in_flight import InFlight


async def stop_and_wait(generation: Generation) -> None:
    """Draft a tree, have it verified, apply the verdict: the loop of the paper.

    Runs until the answer is finished or another mode is better. Raises LinkError. A drafter that does as well without
    the newest features drafts on without waiting for them (token-first).
    """
    generation.enter_mode("stop-and-wait")
    await decode_during_prefill(generation)
    while generation.should_continue:
        drafted = await generation.draft()
        verdict = await generation.verify(drafted)
        generation.commit(verdict)


async def proactive(generation: Generation) -> None:
    """Draft for the likely outcomes of the draft in flight. Raises LinkError."""
    generation.enter_mode("proactive")
    await _draft_ahead(generation, 1)


async def pipelined(generation: Generation) -> None:
    """Keep several drafts in flight, each on the likeliest outcome of the one before. Raises LinkError."""
    generation.enter_mode("pipelined")
    await _draft_ahead(generation, generation.num_in_flight)


async def _draft_ahead(generation: Generation, width: int) -> None:
    await decode_during_prefill(generation)
    in_flight, verdict = InFlight(generation, width), None
    try:
        while generation.should_continue:
            # Not before `should_continue`: a mode that ends here must not send what was drafted ahead.
            if verdict is not None:
                await in_flight.advance(verdict)
            if not in_flight.any:
                await in_flight.send_first()
            verdict = await in_flight.next_verdict()
            generation.commit(verdict)
    finally:
        await in_flight.close()


async def stream(generation: Generation) -> None:
    """Let the target decode alone, one token a pass. Raises LinkError.

    The drafter only reads along, to take over in an outage. Under `auto`, on a link with room for them, it receives the
    features too, so that it can take over with a link as well.
    """
    generation.enter_mode("stream")
    generation.ask_decode(features=generation.affords_features)
    while generation.should_continue:
        verdict = await generation.next_verdict()
        generation.commit(verdict)
        await generation.update_drafter()
    await generation.stop_decode()


async def server_draft(generation: Generation) -> None:
    """Let the server draft next to its target and stream the result, independent of the round trip.

    The client's own drafter reads along with features, to take over in an outage. Raises LinkError, or UsageError when
    the server does not offer the mode.
    """
    generation.enter_mode("server-draft")
    features = not generation.is_auto or generation.affords_features
    generation.ask_decode(generation.planner.server_tree(), features=features)
    while generation.should_continue:
        verdict = await generation.next_verdict()
        generation.commit(verdict)
        await generation.update_drafter()
    await generation.stop_decode()


async def decode_during_prefill(generation: Generation) -> None:
    """Let the server decode alone while the features of a long prompt are on their way. Raises LinkError.

    server   prompt  1  2  3  4  5  6
    client           1  2  3  4  5  6 | draft ...
    features    fffffffffffffffffffff
                           ^ what is left of them takes a round trip, and so does stopping the server
    """
    if not generation.handover.should_decode_first:
        return
    generation.ask_decode(features=True)
    while not generation.finished and not await generation.handover.wait():
        generation.commit(await generation.next_verdict())
    await generation.stop_decode()


async def offline(generation: Generation, is_over: Callable[[], bool] = lambda: False) -> None:
    """Write unverified tokens until the outage is over, the drafter is exhausted or `offline_limit` is reached."""
    config = generation.config
    limit = config.drafter_limit if config.offline_limit is None else config.offline_limit
    num_written = 0
    while generation.offline.can_write and num_written != limit and not is_over():
        await generation.offline.write()
        num_written += 1


LOOPS: Mapping[OnlineMode, Callable[[Generation], Awaitable[None]]] = {
    "stream": stream,
    "server-draft": server_draft,
    "stop-and-wait": stop_and_wait,
    "proactive": proactive,
    "pipelined": pipelined,
}


async def auto(generation: Generation) -> None:
    """Run the mode predicted to be fastest, and switch when another becomes faster. Raises LinkError."""
    while not generation.finished:
        await LOOPS[generation.decide()](generation)
