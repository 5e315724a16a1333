"""A target that gives no numbers, or whose device is lost: who is refused, and what the server says of itself."""

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stage import until
from talk import calling, started, talking
from tiny_targets import build

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Sampling
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

BAD = 5  # a token whose texts give NaN
PROMPT = (9, 11, 30)
SAMPLED = Sampling(0.8, seed=1)


def poisoned() -> Target:
    target = Target.of(build("llama"))
    with torch.no_grad():
        target.model.model.embed_tokens.weight[BAD] = float("nan")
    return target


@pytest.fixture(params=["off", "on"], ids=lambda plan_ahead: f"plan_ahead={plan_ahead}")
async def verifier(request):
    async with started(Verifier(poisoned(), limits=LimitsConfig(plan_ahead=request.param))) as running:
        yield running


async def refused(verifier: Verifier, sampling: Sampling, *, decodes: bool) -> Refusal:
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), sampling=sampling)
        with pytest.raises(Refusal) as told:
            await (talk.decode(0, (9, BAD), 8, 6) if decodes else talk.prompt((9, BAD, 8)))
        return told.value


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED, Sampling(0.8, acceptance="typical", epsilon=0.3, alpha=0.5)])
@pytest.mark.parametrize("decodes", [False, True])
async def test_logits_that_are_no_numbers_are_refused(verifier, sampling, decodes):
    refusal = await refused(verifier, sampling, decodes=decodes)
    assert refusal.reason is Reason.INTERNAL
    assert "not finite" in refusal.message


async def test_it_costs_others_nothing_however_often(verifier):
    """Not even where no session but those has a verdict: a text must not be able to end the process."""
    truth = plain_greedy(Target.of(build("llama")), PROMPT, 1)
    for _ in range(7):
        await refused(verifier, SAMPLED, decodes=False)
    assert verifier.alive
    async with talking(verifier) as talk:
        await talk.open(verifier.describe())
        assert [(await talk.prompt(PROMPT)).bonus] == truth


async def status(server: Server) -> int:
    async with grpc.aio.insecure_channel(server.address) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status


@pytest.mark.parametrize(
    ("error", "refusals"),
    [
        (RuntimeError("misaligned address"), [Reason.INTERNAL] * 3 + [Reason.SHUTTING_DOWN]),
        (torch.AcceleratorError("CUDA error: device-side assert"), [Reason.SHUTTING_DOWN] * 2),
    ],
)
async def test_a_target_that_fails_by_itself_is_given_up(monkeypatch, error, refusals):
    """At once where the device says that it is lost, or else after a few passes; clients are told to come again."""
    async with Server(Verifier(poisoned())) as server:
        verifier = server.verifier
        assert await status(server) == health_pb2.HealthCheckResponse.SERVING

        def lost(*_):
            raise error

        monkeypatch.setattr(Target, "forward", lost)
        told = []
        for _ in refusals:
            async with calling(server.address) as talk:
                await talk.open(verifier.describe())
                with pytest.raises(Refusal) as refusal:
                    await talk.prompt(PROMPT)
                told.append(refusal.value.reason)
        assert told == refusals
        assert not verifier.alive
        await until(lambda: server._health._gracefully_shutting_down, "health has not been told")
        assert await status(server) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_memory_that_runs_out_is_no_lost_device(monkeypatch, verifier):
    error = torch.AcceleratorError("CUDA error: out of memory")
    with monkeypatch.context() as short:
        short.setattr(Target, "forward", lambda *_: (_ for _ in ()).throw(error))
        assert (await refused(verifier, Sampling(), decodes=False)).reason is Reason.SERVER_FULL
    assert verifier.alive
