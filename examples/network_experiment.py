"""A network experiment: one question in several modes over an emulated link, and then during an outage.

    python examples/network_experiment.py --profile paper-4g --outage-s 1

Forward passes take as long as on the paper's hardware (pace="paper"), so that the cost of the link is in proportion.
For results to publish, see `outrider-bench network`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated

import typer

from outrider_client import (
    AsyncClient,
    ClientConfig,
    Committed,
    Event,
    Finished,
    LocalModels,
    Mode,
    OutriderError,
    Statistics,
)
from outrider_models import drafter_dir, target_dir
from outrider_netsim import EngineError, Link, ProfileError, profile_named
from outrider_server import Server, ServerConfig

MODES: tuple[Mode, ...] = ("stream", "stop-and-wait", "proactive", "pipelined")
QUESTION = "Mia has 4 boxes with 4 cards each. Mia makes 4 new ones. How many cards are there in the end?"
CUT_AFTER = 5  # tokens


async def statistics_of(client: AsyncClient, mode: Mode) -> Statistics:
    """Generate one answer and return its statistics."""
    return (await client.complete(QUESTION, mode=mode)).statistics


async def answer_with_outage(client: AsyncClient, link: Link, outage_s: float) -> Statistics:
    """Generate an answer, cut the link after its first tokens, and restore it after `outage_s`."""
    restoring: list[asyncio.TimerHandle] = []
    async with contextlib.aclosing(client.generate(QUESTION)) as events:
        async for event in events:
            if not restoring and has_begun(event):
                link.cut()
                restoring.append(asyncio.get_running_loop().call_later(outage_s, link.restore))
            if isinstance(event, Finished):
                return event.statistics
    raise AssertionError("every answer ends with Finished")


def has_begun(event: Event) -> bool:
    return isinstance(event, Committed) and event.first + len(event.tokens) >= CUT_AFTER


async def run(profile: str, outage_s: float, max_new_tokens: int) -> None:
    served = ServerConfig(str(target_dir()), (str(drafter_dir("moa")),), port=0, pace="paper")
    async with Server.build(served) as server, Link(profile_named(profile), server.address) as link:
        config = ClientConfig(
            link.address, target="embedded", max_new_tokens=max_new_tokens, wait_for_link_s=30, pace="paper"
        )
        models = LocalModels.load(config)
        async with AsyncClient(config, models=models) as client:
            await statistics_of(client, "stream")  # the first answer opens the session and measures the link
            print(f"{link.profile.name} ({link.engine}), passes as long as the paper's")
            print(f"{'mode':15} {'R ms':>6} {'tau':>6} {'tokens/s':>9} {'bytes up':>9} {'bytes down':>11}")
            for mode in MODES:
                s = await statistics_of(client, mode)
                print(
                    f"{mode:15} {s.rtt_ms:6.0f} {s.mean_acceptance_length:6.2f} {s.tokens_per_second:9.1f}"
                    f" {s.bytes_up:9} {s.bytes_down:11}"
                )
            s = await answer_with_outage(client, link, outage_s)
            print(f"outage: {s.offline_ms:.0f} ms offline, {s.rolled_back} tokens rolled back, {s.new_tokens} in total")


def main(
    profile: Annotated[str, typer.Option(help="Link profile, one of `outrider-netsim list`.")] = "paper-4g",
    outage_s: Annotated[float, typer.Option(min=0, help="Length of the outage in seconds.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of an answer in tokens.")] = 60,
) -> None:
    """Compare modes on one emulated link."""
    try:
        asyncio.run(run(profile, outage_s, max_new_tokens))
    except (OutriderError, ProfileError, EngineError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
