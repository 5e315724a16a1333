"""Every example does what it says, against a real server."""

import asyncio
import contextlib

import pytest
from mypy import api

from outrider_client import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.serving import listening
from outrider_client.models.local_models import LocalModels
from outrider_models import target_dir
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

from .conftest import EXAMPLES, InThread

MELONS = "Oscar has 10 melons. Later Oscar makes 3 more. How many melons is that?"
LISTED = (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_listed(path):
    assert f"]({path.name})" in LISTED


@pytest.fixture(scope="module")
def answer() -> tuple[int, ...]:
    """Return the target's own greedy answer to MELONS."""
    models = LocalModels.load(ClientConfig())
    return models, tuple(plain_greedy(Target.load(str(target_dir())), models.encode(MELONS, raw=False), 100))


def test_library_async(example, server, capsys, answer):
    models, tokens = answer
    example("library_async").main([MELONS, "Who am I?"], server)
    said = capsys.readouterr().out
    text = models.decode(tokens).strip()
    assert said.count(text) == 2  # as it came, and whole
    assert "[online]" in said
    assert said.count("unsure: ") == 2


@pytest.mark.slow
def test_the_types_of_the_library_reach_its_users(tmp_path):
    """As mypy reads an example outside the repository; a mistake is found, so that the types are not all Any."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from outrider_client import Client\n\nClient(5).complete('Who am I?').text + 1\n")
    said, _, _ = api.run(["--strict", str(EXAMPLES / "library_async.py"), str(wrong)])
    assert [line.split("[")[-1] for line in said.splitlines()[:-1]] == ["arg-type]", "operator]"], said


def test_custom_drafter(example, server, answer):
    completion = asyncio.run(example("custom_drafter").answer(MELONS, server))
    assert completion.token_ids == answer[1]
    assert "accepted" in completion.origins
    assert completion.statistics.mean_acceptance_length > 1.2


def test_private_prompt(example, server, capsys):
    example("private_prompt").main("Summarize:\nCity: Oxford\nPet: <<PET: zebra>>", server)
    local, placeholder = capsys.readouterr().out.split("placeholder\n")
    for part, sent in ((local, "Pet:'"), (placeholder, "Pet: [PET_1]'")):
        (line,) = [line for line in part.splitlines() if line.startswith("  sent: ")]
        assert line.endswith(sent)
        assert "zebra" not in line


@pytest.mark.slow
def test_json_answers(example, server, capsys):
    example("json_answers").main(2, "lan", "auto", 400, server)
    free, schema = capsys.readouterr().out.splitlines()
    assert free.startswith("free    0 of 2 valid, ")
    assert schema.startswith("schema  2 of 2 valid, ")


def test_network_experiment(example, capsys):
    example("network_experiment").main("lan", outage_s=0.1, max_new_tokens=12)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["stream", "stop-and-wait", "proactive", "pipelined"]
    assert "ms offline" in lines[6]


@contextlib.asynccontextmanager
async def gateway_to(server: str):
    """Run a gateway and yield its address."""
    config = ClientConfig(server)
    models = await asyncio.to_thread(LocalModels.load, config)
    async with listening(config, GatewayConfig(port=0), models) as (http, sockets):
        serving = asyncio.create_task(http.serve(sockets))
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1"
        finally:
            http.should_exit = True
            await serving


def test_openai_client(example, server, capsys, answer):
    models, tokens = answer
    with InThread(lambda: gateway_to(server)) as url:
        example("openai_client").main(MELONS, url)
    said = capsys.readouterr().out
    assert models.decode(tokens).strip() in said
    assert said.count(", ") >= 5  # five tokens, each with others
