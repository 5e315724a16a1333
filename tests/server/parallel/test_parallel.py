"""A target divided among two processes: the same answers, and both end when either does."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from talk import PROMPT, calling, serving, talking, text_of
from tiny_targets import VOCAB, build, tree_around
from transformers import PhimoeConfig
from transformers.models.gpt2 import GPT2Config

from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import LinkError, Reason, Refusal, UsageError
from outrider_proto.frames import ServerTree
from outrider_server.config.config import ServerConfig
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.load import load_drafters, load_taps
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.parallel.load import load_target
from outrider_server.parallel.shard import leave
from outrider_server.sessions.verifier import Verifier

from ..engine.test_engine import GREEDY, speculate

COMMAND = [sys.executable, "-c", "from outrider_server.cli.app import main; main()"]
PATIENCE_S = 120  # nothing takes that long; it only keeps a broken test from hanging


def need_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("a target is divided over GPUs where there are any")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Grouped heads, soft-capped scores, windows."""
    directory = tmp_path_factory.mktemp("target")
    build("gemma2", vocab_size=VOCAB + 1).save_pretrained(directory)  # some versions divide the vocabulary evenly only
    return directory


@pytest.fixture(scope="module", params=["tiny", "embedded"])
def pair(request, tiny):
    """The target whole and divided, and where it lies."""
    need_cpu()
    leave()  # a training in this process may have left its group behind
    directory = tiny if request.param == "tiny" else target_dir()
    whole = Target.load(str(directory))
    divided = load_target(ServerConfig(str(directory), threads=1, tensor_parallel=2))
    try:
        yield whole, divided, directory
    finally:
        divided.close()


@pytest.mark.slow
def test_any_draft_gives_the_whole_targets_output(pair):
    whole, divided, _ = pair
    rng = np.random.default_rng(5)
    truth = plain_greedy(whole, PROMPT, 50)
    sequence = Sequence(divided.kv, None)
    answer = speculate(
        Engine(divided), sequence, PROMPT, 50, lambda a: tree_around(rng, truth[len(a) :], int(rng.integers(0, 6)), 7)
    )
    assert answer[:50] == truth
    assert divided.kv == whole.kv


@pytest.mark.slow
def test_hidden_states_and_kv_are_the_whole_targets(pair):
    whole, divided, directory = pair
    drafters = [drafter_dir("eagle3")] if directory == target_dir() else []
    rows = []
    for target in (whole, divided):
        tap = load_taps(target, directory, drafters)[-1]
        sequence = Sequence(target.kv, tap)
        (result,) = Engine(target).verify([StepInput(sequence, PROMPT, sampler=GREEDY)])
        Engine(target).commit(result)
        rows.append((result.hidden, sequence.slot.rows(0, len(PROMPT))))
    torch.testing.assert_close(rows[1], rows[0], atol=1e-3, rtol=1e-3)


@pytest.mark.slow
async def test_sessions_features_and_drafting_on_the_server(pair):
    whole, divided, directory = pair
    sources = [drafter_dir("eagle2") if directory == target_dir() else "lookup"]
    taps, drafters = load_taps(divided, directory, sources), load_drafters(divided, directory, sources)
    truth = plain_greedy(whole, PROMPT, 30)
    async with serving(divided, taps, drafters, kv_memory="8MiB") as verifier:

        async def reply() -> list[int]:
            async with talking(verifier) as talk:
                opened = await talk.open(verifier.describe(), tap=drafters[0].tap.fingerprint)
                assert opened.server_draft
                tree = ServerTree(breadth=4, levels=3, budget=12)
                verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 30, tree=tree)
                return text_of(verdicts)

        assert await asyncio.gather(*(reply() for _ in range(3))) == [truth] * 3
        assert verifier.alive


@contextmanager
def running(target: Path, *options: str):
    """A server's process, the line that it is ready with, and the process of its other rank."""
    need_cpu()
    places = ["--target", str(target), "--port", "0", "--threads", "1"]
    arguments = ["serve", *places, "--set", "tensor-parallel=2", *options]
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True) as process:
        try:
            while "ready on" not in (ready := process.stderr.readline()):  # libraries may have warned of this machine
                assert ready, "it ended without a word"
            (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            with open(os.pidfd_open(int(worker)), "rb") as descriptor:
                yield process, ready, descriptor
        finally:
            process.kill()


def ended(descriptor) -> bool:
    return bool(select.select([descriptor], [], [], PATIENCE_S)[0])


linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the other rank's process in /proc")


@linux
@pytest.mark.slow
def test_the_command_serves_and_stops(tiny, tmp_path):
    ready = tmp_path / "ready.json"
    with running(tiny, "--ready-file", str(ready)) as (process, line, worker):
        address = json.loads(ready.read_text())["address"]
        assert line == (
            f"outrider-server: ready on {address}, target {tiny.name}, features for last-hidden, edge bundles\n"
        )
        whole = Target.load(str(tiny))

        async def reply() -> list[int]:
            about = Verifier(whole).describe()
            async with calling(address) as talk:
                await talk.open(about)
                verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 20)
            return text_of(verdicts)

        assert asyncio.run(reply()) == plain_greedy(whole, PROMPT, 20)
        signal.pidfd_send_signal(worker.fileno(), signal.SIGTERM)  # as systemd does it, to all at once
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE_S)
        assert (rest, process.returncode) == ("", 0)
        assert ended(worker)


@linux
@pytest.mark.slow
def test_a_rank_that_dies_ends_the_server_and_its_clients_are_told_to_come_again(tiny):
    with running(tiny) as (process, line, worker):
        address = line.split("ready on ")[1].split(",")[0]

        async def cut() -> Refusal | LinkError:
            async with calling(address) as talk:
                await talk.open(Verifier(Target.load(str(tiny))).describe())
                signal.pidfd_send_signal(worker.fileno(), signal.SIGKILL)
                try:
                    while True:
                        await talk.decode(0, PROMPT[:-1], PROMPT[-1], 20)
                except (Refusal, LinkError) as error:
                    return error

        error = asyncio.run(cut())
        assert isinstance(error, LinkError) or error.reason is Reason.SHUTTING_DOWN
        _, rest = process.communicate(timeout=PATIENCE_S)
        assert rest == "outrider-server: rank 1 of the target: killed by SIGKILL; start the server again\n"
        assert process.returncode == 1


@linux
@pytest.mark.slow
def test_no_rank_outlives_the_server(tiny):
    with running(tiny) as (process, _, worker):
        process.kill()
        assert ended(worker)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel": 3}, "tensor_parallel=3: the target has 4 heads; need a number that divides them"),
        ({"tensor_parallel": 4}, "tensor_parallel=4: the target has 2 K/V heads; need a number that divides them"),
        ({"dtype": "int8"}, "dtype=int8: not with tensor_parallel"),
        ({"batch_invariant": True}, "batch_invariant: not with tensor_parallel"),
        ({"device": "cuda:1"}, "device=cuda:1: with tensor_parallel=2 need cpu, or cuda for"),
        ({"dtype": "int4"}, "dtype=int4: need one of"),
        ({"target": "/nowhere"}, "/nowhere: no such directory"),
    ],
)
def test_what_cannot_be_divided_is_said_before_anything_starts(tiny, changes, message):
    with pytest.raises(UsageError) as caught:
        load_target(ServerConfig(**({"target": str(tiny), "tensor_parallel": 2} | changes)))
    assert message in str(caught.value)


@pytest.mark.parametrize("config", [GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4), PhimoeConfig()])
def test_a_model_without_a_plan(tmp_path, config):
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=f"no plan that divides the attention heads of {config.model_type}"):
        load_target(ServerConfig(str(tmp_path), tensor_parallel=2))
