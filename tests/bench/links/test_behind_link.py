"""The embedded pair behind every engine that this machine allows, with an outage amid the answer: the answer is the
target's own."""

import contextlib
import functools
import json
import subprocess
import sys

import pytest

from outrider_bench.core.prompts import questions
from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir
from outrider_netsim import Link, profile_named
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEW = 120
CUT_AFTER = 15  # tokens
CHAIN = ["--mode", "stop-and-wait", "--set", "budget=1"]  # one token a draft: the answer takes many round trips
NETSIM = [sys.executable, "-m", "outrider_netsim.cli.app", "run", "--profile", "paper-4g", "--set", "seed=1"]
OUTRIDER = [sys.executable, "-c", "from outrider_client.cli.app import main; main()", "generate", "--json"]


@functools.cache
def asked() -> tuple[int, ...]:
    """A prompt of the family whose answers are long."""
    models = LocalModels.load(ClientConfig())
    return next(question.prompt for question in questions(models, 1) if question.sample.family == "code")


@functools.cache
def plain() -> tuple[int, ...]:
    """The target alone, with neither drafter nor link."""
    return tuple(plain_greedy(Target.load(str(target_dir())), asked(), NEW))


async def test_a_link_cut_by_hand_changes_no_token(embedded_server, engine):
    async with (
        Link(profile_named("paper-4g"), embedded_server.address, engine, seed=1) as link,
        AsyncClient(ClientConfig(server=link.address, max_new_tokens=NEW, wait_for_link_s=60)) as client,
    ):
        states, tokens, was_cut = [], [], False
        async with contextlib.aclosing(client.generate(asked())) as events:
            async for event in events:
                match event:
                    case Committed() | Unverified():
                        tokens[event.first :] = event.tokens
                    case RolledBack():
                        del tokens[event.first :]
                    case LinkChanged():
                        states.append(event.state)
                if len(tokens) > CUT_AFTER and not was_cut:
                    link.cut()
                    was_cut = True
                if link.is_cut and states[-1] is LinkState.OFFLINE:
                    link.restore()
    assert LinkState.OFFLINE in states
    assert states[-1] is LinkState.ONLINE
    assert tuple(tokens) == plain()


def test_an_unchanged_command_runs_behind_the_link(embedded_server, engine):
    """Outages that come so often that none of the connections lives for long."""
    address = "{link}" if engine == "proxy" else embedded_server.address
    command = [
        *OUTRIDER,
        "--prompt-ids",
        ",".join(map(str, asked())),
        "--max-new-tokens",
        str(NEW),
        *CHAIN,
        "--mode",
        "stop-and-wait",
    ]
    options = ["--engine", engine, "--upstream", embedded_server.address, "--outage", "700ms@1s/2s", "--"]
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
    assert tuple(events[-1]["token_ids"]) == plain()
    assert "offline" in [event.get("state") for event in events], run.stderr
    assert f"engine {engine}" in run.stderr
    assert "link cut" in run.stderr
    assert "connections; up" in run.stderr.splitlines()[-1]
