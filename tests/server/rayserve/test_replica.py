"""A service's methods called as Ray calls them: what they write comes out, and a refusal keeps its reason."""

import asyncio
from contextlib import aclosing

import grpc

from outrider_proto.errors import Reason, Refusal
from outrider_proto.status import DETAILS_KEY
from outrider_server.rayserve.replica import RayServicerContext
from outrider_server.rpc.service import abort


class RayContext:
    """As much of ray.serve.grpc_util.RayServegRPCContext as is asked for."""

    def __init__(self) -> None:
        self.code = None
        self.details = None
        self.trailing = []

    def invocation_metadata(self):
        return [("x-key", "value")]

    def peer(self):
        return "ipv4:192.0.2.1:1"

    def auth_context(self):
        return {}

    def set_code(self, code):
        self.code = code

    def set_details(self, details):
        self.details = details

    def set_trailing_metadata(self, metadata):
        self.trailing = metadata


class Echo:
    """Answers what it is sent, with the caller's metadata; refuses b"no"."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def once(self, request, context):
        if request == b"no":
            await abort(context, Refusal(Reason.CONTEXT_FULL, "not that"))
        return request + dict(context.invocation_metadata())["x-key"].encode()

    async def often(self, requests, context):
        try:
            async for request in requests:
                if request == b"no":
                    await abort(context, Refusal(Reason.TAKEN_OVER, "not that"))
                await context.write(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def sent(*messages):
    for message in messages:
        yield message


async def endless():
    yield b"first"
    await asyncio.Event().wait()


async def once(request, context):
    call = RayServicerContext(context)
    return (await call.unary(Echo().once(request, call))).SerializeToString()


async def received(requests, context):
    call = RayServicerContext(context)
    return [message.SerializeToString() async for message in call.streamed(Echo().often(requests, call))]


def assert_refused(context, reason: Reason) -> None:
    assert context.code is grpc.StatusCode[reason.status]
    assert context.details == "not that"
    assert dict(context.trailing)[DETAILS_KEY].endswith(b"outrider.v1")
    assert reason.name.encode() in dict(context.trailing)[DETAILS_KEY]


async def test_unary_refused():
    context = RayContext()
    assert await once(b"no", context) == b""
    assert_refused(context, Reason.CONTEXT_FULL)


async def test_streamed_and_refused():
    context = RayContext()
    assert await received(sent(b"one", b"no", b"two"), context) == [b"one", b""]
    assert_refused(context, Reason.TAKEN_OVER)


async def test_nobody_listens_any_more():
    echo, call = Echo(), RayServicerContext(RayContext())
    async with aclosing(call.streamed(echo.often(endless(), call))) as messages:
        assert (await anext(messages)).SerializeToString() == b"first"
    assert echo.cancelled.is_set()
