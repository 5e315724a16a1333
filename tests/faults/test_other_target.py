"""A server that comes back in the middle of an answer with another model of the same embedding and head, or with
another dtype: it is told, and the answer is the new target's own, verified from its start."""

import asyncio
import functools
import shutil
from contextlib import asynccontextmanager

import pytest
from safetensors.torch import load_file, save_file
from stage import ANSWER_S, NEW, PROMPT, TARGET, client, plain, served

from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import OTHER_TARGET, RolledBack, Warned
from outrider_proto.addresses import free_port
from outrider_proto.frames import Verdict
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier


class Falling(Verifier):
    """Says no more after a few verdicts."""

    after = 6
    fallen: asyncio.Event

    async def session(self, *args):
        num_verdicts = 0
        async for frame in super().session(*args):
            num_verdicts += isinstance(frame, Verdict)
            if num_verdicts > self.after:
                self.fallen.set()
                return
            yield frame


@pytest.fixture(scope="module")
def other_model(tmp_path_factory):
    """The same embedding, head and sizes; other layers."""
    directory = tmp_path_factory.mktemp("other") / "target"
    shutil.copytree(TARGET, directory)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if "_proj" in name:
            tensors[name] = tensor.flip(0).contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@functools.cache
def target(directory, dtype="float32") -> Target:
    return Target.load(str(directory), dtype)


@asynccontextmanager
async def replaced(later: Target, **changes):
    """A client whose server falls silent in its first answer; its place is taken by one of `later` meanwhile."""
    first = Falling(served()[0], [served()[1]])
    first.fallen = asyncio.Event()
    port = free_port()

    async def replace() -> None:
        async with Server(first, port=port):
            await first.fallen.wait()
        async with Server(Verifier(later, [served()[1]]), port=port):
            await asyncio.Event().wait()

    replacing = asyncio.create_task(replace())
    try:
        async with client(f"127.0.0.1:{port}", **changes) as mine:
            yield mine
    finally:
        replacing.cancel()
        await asyncio.gather(replacing, return_exceptions=True)


async def written(mine, **overrides):
    """An answer, its warnings, and how often all of it was taken back."""
    answer, warnings, num_taken_back = AnswerText(), [], 0
    async with asyncio.timeout(ANSWER_S):
        async for event in mine.generate(PROMPT, **overrides):
            answer.take(event)
            if isinstance(event, Warned):
                warnings.append(event.message)
            num_taken_back += isinstance(event, RolledBack) and event.first == 0
    assert "unverified" not in answer.origins
    return answer.token_ids, warnings, num_taken_back


@pytest.mark.parametrize(
    ("change", "mode", "on_reconnect"),
    [
        ("model", "stop-and-wait", "verify"),
        ("model", "stream", "keep"),
        ("model", "pipelined", "keep"),
        ("model", "auto", "verify"),
        ("bfloat16", "stream", "verify"),
        ("nothing", "stop-and-wait", "verify"),
    ],
)
async def test_the_answer_is_the_new_targets(other_model, change, mode, on_reconnect):
    dtype = "bfloat16" if change == "bfloat16" else "float32"
    later = target(other_model if change == "model" else TARGET, dtype)
    expected = tuple(plain_greedy(later, PROMPT, NEW))
    assert (change == "model") == (expected[:3] != plain()[:3])
    async with replaced(later, on_reconnect=on_reconnect, offline_limit=3) as mine:
        tokens, warnings, num_taken_back = await written(mine, mode=mode)
        if change == "nothing":
            assert (OTHER_TARGET in warnings, num_taken_back) == (False, 0)
        else:
            assert (warnings.count(OTHER_TARGET), num_taken_back) == (1, 1 + (change == "model"))
        assert tokens == expected
        tokens, warnings, _ = await written(mine, mode=mode)
        assert (tokens, OTHER_TARGET in warnings) == (expected, False)
