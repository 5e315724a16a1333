"""A server that does not keep to the contract, against the real client: a clear refusal, or an answer written alone and
said to be; never a crash, a hang, or a word marked verified beyond what a liar's verdicts can say anyway."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest
from stage import ANSWER_S, NEW, PROMPT, answer, client, plain, served, verifier

from outrider_client.connection.policy import Backoff, Patience, Timeouts
from outrider_proto.errors import LinkError, Refusal
from outrider_proto.frames import Features, Finish, Opened, Pong, TokenLogprob, Verdict
from outrider_proto.status import DETAILS_KEY
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ..marks import in_turn, slow

SHORT = Timeouts(connect_s=60.0, reconnect_s=2.0, open_s=60.0, verdict_s=0.1, features_s=0.1)


class Liar(Verifier):
    """Says what `twist` makes of each frame: frames, or END for the end of the stream."""

    twist = None

    async def session(self, *args):
        async with aclosing(super().session(*args)) as frames:
            async for frame in frames:
                async with aclosing(self.twist(frame)) as told:
                    async for lie in told:
                        if lie is END:
                            return
                        yield lie


END = object()


def instead(kind, lie):
    """Every frame of a kind as `lie` has it."""

    async def twist(frame):
        yield lie(frame) if isinstance(frame, kind) else frame

    return twist


def beside(kind, *lies, after=False):
    """Every frame of a kind with more frames before it, or after."""

    async def twist(frame):
        if after or not isinstance(frame, kind):
            yield frame
        if isinstance(frame, kind):
            for lie in lies:
                yield lie(frame)
            if not after:
                yield frame

    return twist


def forever(kind, lie):
    """A frame of a kind is followed by others without end."""

    async def twist(frame):
        yield frame
        while isinstance(frame, kind):
            yield lie(frame)
            await asyncio.sleep(0)

    return twist


def never(kind):
    async def twist(frame):
        if not isinstance(frame, kind):
            yield frame

    return twist


def some_rows(verdict: Verdict, first: int = 0, width: int | None = None, seq: int | None = None) -> Features:
    rows = np.ones((3, served()[1].info.width if width is None else width), np.float32)
    return Features(verdict.seq if seq is None else seq, first, rows, last=False)


def heavy(seq: int) -> Verdict:
    """A verdict that takes 20 times as much memory as it takes on the wire."""
    likeliest = tuple((token, -2.0 - token / 99) for token in range(20))
    return Verdict(seq, (), 5, logprobs=tuple(TokenLogprob(-1.5 - place / 999, likeliest) for place in range(256)))


HARMLESS = {
    "verdicts on what was never sent": beside(
        Verdict, lambda v: Verdict(v.seq + 99, (), 7), lambda v: Verdict(0, (), 7)
    ),
    "features of nothing": beside(Verdict, lambda v: some_rows(v, first=2**31), after=True),
    "features of another draft": beside(Verdict, lambda v: some_rows(v, first=3, seq=2**32 - 1), after=True),
    "features beyond all measure": instead(Features, lambda f: replace(f, rows=np.full_like(f.rows, 3e38))),
    "features that are all there, ahead of time": instead(Features, lambda f: replace(f, last=True)),
    "features that never end": instead(Features, lambda f: replace(f, last=False)),
    "pongs that nobody asked for": beside(Verdict, *[lambda v: Pong(2**63)] * 50),
    "a context of one token": instead(Opened, lambda o: replace(o, max_context=1)),
    "a context without end": instead(Opened, lambda o: replace(o, max_context=2**32 - 1)),
    "a session that holds what it cannot": instead(Opened, lambda o: replace(o, resumed=True, kept_len=2**32 - 1)),
    "a verdict twice, and its end": beside(
        Verdict, lambda v: replace(v, finish=Finish.CANCELLED, bonus=None, path=()), after=True
    ),
    "log probabilities beside nothing asked for": beside(Verdict, lambda v: heavy(v.seq + 99)),
    "another context at each resume": instead(Opened, lambda o: replace(o, max_context=o.max_context - o.resumed)),
    "other ends of text": instead(Opened, lambda o: replace(o, eos_token_ids=(7, 9))),
    "a drafter that nobody asked for": instead(Opened, lambda o: replace(o, server_draft=True)),
    "a session that holds less than it did": instead(Opened, lambda o: replace(o, kept_len=0)),
    "words beside a path": instead(Verdict, lambda v: replace(v, tokens=(5, 6))),
    "no end of text": instead(Opened, lambda o: replace(o, eos_token_ids=())),
}
REFUSED = {
    "a path outside the tree": instead(Verdict, lambda v: replace(v, path=(250,))),
    "a path that jumps": instead(Verdict, lambda v: replace(v, path=(0, 0))),
    "a bonus that there is none of": instead(Verdict, lambda v: replace(v, bonus=99_999)),
    "a verdict without bonus": instead(Verdict, lambda v: replace(v, path=(), bonus=None, finish=Finish.NOT_YET)),
    "cancelled, which nobody asked for": instead(Verdict, lambda v: Verdict(v.seq, (), None, Finish.CANCELLED)),
    "stale, which it is not": instead(Verdict, lambda v: Verdict(v.seq, (), None, stale=True)),
    "features of another width": beside(Verdict, lambda v: some_rows(v, width=7), after=True),
    "Opened twice": beside(Verdict, lambda v: Opened("x", False, 0, b"12345678", 512, 255, (2,))),
    "a first frame that is not Opened": instead(Opened, lambda o: Verdict(1, (), 5)),
    "trees without end": instead(Opened, lambda o: replace(o, max_nodes=2**32 - 1)),
    "a name without end": instead(Opened, lambda o: replace(o, session_id="x" * 500_000)),
}
FRUITLESS = {
    "no verdict ever": never(Verdict),
    "verdicts on something else": instead(Verdict, lambda v: replace(v, seq=v.seq + 99)),
    "pongs without end": forever(Opened, lambda o: Pong(5)),
    "verdicts on something else without end": forever(Opened, lambda o: Verdict(2**32 - 1, (), 5)),
    "features without end": forever(Opened, lambda o: some_rows(Verdict(1, (), 5), first=0)),
    "the end after Opened": instead(Verdict, lambda v: END),
}


@asynccontextmanager
async def lying(twist):
    liar = verifier(Liar)
    liar.twist = twist
    async with Server(liar) as running:
        yield running


@pytest.mark.parametrize(("lie", "mode"), in_turn(list(HARMLESS), ["stop-and-wait", "pipelined"]))
async def test_a_lie_that_changes_nothing(lie, mode):
    async with (
        lying(HARMLESS[lie]) as running,
        client(running.address, timeouts=Timeouts(connect_s=60.0, features_s=0.05)) as mine,
    ):
        assert await answer(mine, mode=mode) == plain()
        longer = (*PROMPT, *plain(), 9)
        assert await answer(mine, longer, mode=mode) == plain(longer)


LIES = in_turn(list(REFUSED), ["stop-and-wait", "pipelined", "stream"])
NO_LIE = ("features of another width", "stream")  # a mode that asks for none drops them as they arrive


@pytest.mark.parametrize(("lie", "mode"), [row for row in LIES if row.values != NO_LIE])
async def test_a_lie_that_is_refused(lie, mode):
    async with lying(REFUSED[lie]) as running, client(running.address) as mine:
        with pytest.raises(Refusal) as refused:
            await answer(mine, mode=mode)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("lie", "mode"),
    [
        ("no verdict ever", "stop-and-wait"),
        *slow(*((lie, "stop-and-wait") for lie in list(FRUITLESS)[1:])),
        *slow(("no verdict ever", "pipelined"), ("no verdict ever", "stream")),
    ],
)
async def test_a_link_that_comes_back_in_vain_is_given_up(lie, mode):
    patience, backoff = Patience(floor_s=1.0), Backoff(first_s=0.01, cap_s=0.05)
    more = {"wait_for_link_s": 0.0, "timeouts": SHORT, "patience": patience, "backoff": backoff}
    async with lying(FRUITLESS[lie]) as running, client(running.address, **more) as mine:
        async with asyncio.timeout(ANSWER_S):
            completion = await mine.complete(PROMPT, mode=mode)
    assert completion.reason in ("unverified", "link")
    assert set(completion.origins) <= {"unverified"}
    assert len(completion.token_ids) <= NEW


async def test_a_server_that_never_says_opened_is_not_waited_for_long():
    pongs = instead(Opened, lambda opened: Pong(1))
    async with lying(pongs) as running, client(running.address, timeouts=Timeouts(connect_s=60.0, open_s=0.2)) as mine:
        with pytest.raises(LinkError, match="does not answer"):
            await answer(mine)


async def test_a_status_that_makes_no_sense_is_the_peers_fault():
    """Details that are no details: found on any server that is not one of ours."""

    async def gone(request, context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "\x1b[2J gone", ((DETAILS_KEY, b"\xff\xff\xff"),))

    # gRPC loses the status where the stream ends while the client writes; the client then asks with Describe.
    methods = {
        "Session": grpc.stream_stream_rpc_method_handler(gone),
        "Describe": grpc.unary_unary_rpc_method_handler(gone),
    }
    running = grpc.aio.server()
    running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("outrider.v1.Verifier", methods),))
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    try:
        async with client(f"127.0.0.1:{port}") as mine:
            with pytest.raises(LinkError):
                await answer(mine)
    finally:
        await running.stop(None)
