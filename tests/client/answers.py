"""What tests of answers share: a golden pair, the plain loop, the text of events, an answer through an outage."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.policy import Patience
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_netsim import Link
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

PAIRS = {"moa": ("target_tiny", "moa_tli0"), "eagle2": ("target_l4", "eagle2_llama")}


def golden_config(golden: Path, pair: str = "moa", **fields) -> ClientConfig:
    target, drafter = PAIRS[pair]
    patience = Patience(floor_s=1.0)  # this machine may be busy
    places = {"target": golden / target, "drafter": golden / drafter / "drafter"}
    fields = {"offline_drafter": str(places["drafter"]), **fields}  # it is not measured
    return ClientConfig(**places, wait_for_link_s=30, patience=patience, **fields)


@functools.cache
def oracle(target: Path) -> Target:
    """Another one, since the plain loop cannot run on a target that serves."""
    return Target.load(str(target))


@functools.cache
def plain(target: Path, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    return tuple(plain_greedy(oracle(target), prompt, num_tokens))


def replayed(events) -> list[int]:
    """The answer as a listener of events builds it."""
    tokens: list[int] = []
    for event in events:
        match event:
            case Committed() | Unverified():
                assert event.first == len(tokens)
                tokens += event.tokens
            case RolledBack():
                assert len(tokens) - event.count == event.first
                del tokens[event.first :]
    return tokens


def is_offline(event) -> bool:
    return isinstance(event, LinkChanged) and event.state is LinkState.OFFLINE


async def through_an_outage(client: AsyncClient, link: Link, prompt, cut_at: int, until: int, **overrides):
    """All events of an answer whose link is cut after `cut_at` tokens, until the drafter has written `until`."""
    events, num_outages, num_unverified = [], 0, 0
    async with contextlib.aclosing(client.generate(prompt, **overrides)) as stream:
        async for event in stream:
            events.append(event)
            num_unverified += isinstance(event, Unverified)
            num_outages += is_offline(event)
            if (
                isinstance(event, Committed)
                and event.first + len(event.tokens) >= cut_at
                and link.stats.connections < 2
            ):
                link.cut()
            if link.is_cut and isinstance(event, Unverified) and num_unverified >= until:
                link.restore()
    return events, num_outages
