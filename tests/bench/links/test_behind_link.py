"""The embedded pair in every mode, behind every engine that this machine allows, with links that are changed and cut at
random moments: the answer is the target's own."""

import contextlib
import dataclasses
import functools
import json
import random
import subprocess
import sys
from typing import get_args

import pytest

from outrider_bench.core.prompts import questions
from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.policy import Timeouts
from outrider_client.core.config import Mode
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_models.core.embedded import target_dir
from outrider_netsim import Link, profile_named
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEW = 120
MODES = [mode for mode in get_args(Mode) if mode != "offline"]
TIMEOUTS = Timeouts(verdict_s=20.0)  # rather than two minutes
PROFILES = ["paper-5g", "paper-4g", "lte-edge"]
CHAIN = ["--mode", "stop-and-wait", "--set", "budget=1"]  # one token a draft: the answer takes many round trips
NETSIM = [sys.executable, "-m", "outrider_netsim.cli.app", "run", "--profile", "paper-4g", "--set", "seed=1"]
OUTRIDER = [sys.executable, "-c", "from outrider_client.cli.app import main; main()", "generate", "--json"]


@functools.cache
def models() -> LocalModels:
    return LocalModels.load(ClientConfig())


@functools.cache
def asked() -> tuple[int, ...]:
    """A prompt of the family whose answers are long."""
    return next(question.prompt for question in questions(models(), 1) if question.sample.family == "code")


@functools.cache
def plain() -> tuple[int, ...]:
    """The target alone, with neither drafter nor link."""
    return tuple(plain_greedy(Target.load(str(target_dir())), asked(), NEW))


def choices(draw: random.Random, mode: str) -> dict:
    return {
        "mode": mode,
        "shape": TreeShape(draw.randint(1, 4), draw.randint(2, 6), draw.randint(4, 16)),
        "in_flight": draw.randint(2, 3),
        "outcomes": draw.choice([None, 1, 4]),
        "wait_for_features": draw.choice([None, True, False]),
    }


@pytest.mark.parametrize("mode", MODES)
async def test_whatever_happens_to_the_link(embedded_server, engine, mode):
    draw = random.Random(f"{mode}/{engine}")
    states = []
    # Where the server decodes alone, a client that the machine held up finds the whole answer on its way already, and
    # no cut reaches it: then another answer is cut.
    for _ in range(4):
        if LinkState.OFFLINE not in states:
            tokens, states = await behind_a_link_that_is_cut(embedded_server.address, engine, mode, draw)
            assert tokens == plain()
            assert states[-1] is LinkState.ONLINE
    assert LinkState.OFFLINE in states


async def behind_a_link_that_is_cut(
    address: str, engine: str, mode: str, draw: random.Random
) -> tuple[tuple[int, ...], list[LinkState]]:
    """The tokens and the states of the link; it is cut and changed at two random moments of the answer."""
    moments = sorted(draw.sample(range(5, NEW // 2), 2))  # later, the rest of the answer may be on its way already
    config = ClientConfig(max_new_tokens=NEW, wait_for_link_s=60, timeouts=TIMEOUTS)
    tokens: list[int] = []
    states: list[LinkState] = []
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(
            Link(profile_named(draw.choice(PROFILES)), address, engine, seed=draw.randint(0, 99))
        )
        client = await stack.enter_async_context(AsyncClient(at(config, link.address), models=models()))
        events = await stack.enter_async_context(contextlib.aclosing(client.generate(asked(), **choices(draw, mode))))
        async for event in events:
            match event:
                case Committed() | Unverified():
                    tokens[event.first :] = event.tokens
                case RolledBack():
                    del tokens[event.first :]
                case LinkChanged():
                    assert "no verdict" not in event.detail
                    states.append(event.state)
            if moments and len(tokens) > moments[0] and not link.is_cut and is_online(states):
                link.cut()
                link.set(profile_named(draw.choice(PROFILES)))
                del moments[0]
            if link.is_cut and not is_online(states):
                link.restore()
    return tuple(tokens), states


def is_online(states: list[LinkState]) -> bool:
    return bool(states) and states[-1] is LinkState.ONLINE


def at(config: ClientConfig, address: str) -> ClientConfig:
    return dataclasses.replace(config, server=address)


def test_an_unchanged_command_runs_behind_the_link(embedded_server, engine):
    """Outages that come so often that none of the connections lives for long, and 60 round trips."""
    address = "{link}" if engine == "proxy" else embedded_server.address
    command = [*OUTRIDER, "--prompt-ids", ",".join(map(str, asked())), "--max-new-tokens", str(NEW // 2), *CHAIN]
    options = ["--engine", engine, "--upstream", embedded_server.address, "--outage", "1s@1s/2500ms", "--"]
    run = subprocess.run(
        [*NETSIM, *options, *command, "--server", address, "--wait-for-link", "60"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert events[-1]["event"] == "answer"
    assert tuple(events[-1]["token_ids"]) == plain()[: NEW // 2]
    assert "offline" in [event.get("state") for event in events], run.stderr
    assert f"engine {engine}" in run.stderr
    assert "link cut" in run.stderr
    assert "connections; up" in run.stderr.splitlines()[-1]
