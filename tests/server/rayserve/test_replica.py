"""A service's method called as Ray calls it: a refusal keeps its reason, and nobody's stream runs on."""

import asyncio
from contextlib import aclosing
from unittest.mock import Mock

import grpc

from outrider_proto.errors import Reason, Refusal
from outrider_proto.status import DETAILS_KEY
from outrider_server.rayserve.replica import RayServicerContext, Replica
from outrider_server.rpc.bundle_service import BundlesService
from outrider_server.rpc.service import abort
from outrider_server.security.authenticator import Authenticator
from outrider_server.telemetry.observer import ServerObserver


async def test_what_is_written_comes_out_and_a_refusal_keeps_its_reason():
    context = Mock()
    call = RayServicerContext(context)

    async def method() -> None:
        await call.write(b"one")
        await abort(call, Refusal(Reason.TAKEN_OVER, "not that"))

    assert [message.SerializeToString() async for message in call.streamed(method())] == [b"one", b""]
    context.set_code.assert_called_once_with(grpc.StatusCode[Reason.TAKEN_OVER.status])
    context.set_details.assert_called_once_with("not that")
    ((trailing,), _) = context.set_trailing_metadata.call_args
    assert b"TAKEN_OVER" in dict(trailing)[DETAILS_KEY]


async def test_a_call_of_one_answer_returns_it_or_nothing_when_it_is_refused():
    context = Mock()
    call = RayServicerContext(context)

    async def method(*, is_refused: bool) -> bytes:
        if is_refused:
            await abort(call, Refusal(Reason.CONTEXT_FULL, "not that"))
        return b"one"

    assert (await call.unary(method(is_refused=False))).SerializeToString() == b"one"
    context.set_code.assert_not_called()
    assert (await call.unary(method(is_refused=True))).SerializeToString() == b""
    context.set_code.assert_called_once_with(grpc.StatusCode[Reason.CONTEXT_FULL.status])


async def test_nobody_listens_any_more():
    call, cancelled = RayServicerContext(Mock()), asyncio.Event()

    async def endless() -> None:
        try:
            await call.write(b"first")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with aclosing(call.streamed(endless())) as messages:
        assert (await anext(messages)).SerializeToString() == b"first"
    assert cancelled.is_set()


async def test_bytes_that_are_no_request_are_refused_here_too():
    replica = object.__new__(Replica)  # without a target, which Manifest does not need
    replica._bundles = BundlesService(None, Authenticator(), ServerObserver())
    context = Mock()
    context.invocation_metadata.return_value, context.auth_context.return_value = (), {}
    context.peer.return_value = "ipv4:127.0.0.1:9"
    for data, code in ((b"\xff", "INVALID_ARGUMENT"), (bytes(8192), "RESOURCE_EXHAUSTED")):
        context.reset_mock()
        assert (await replica.Manifest(data, context)).SerializeToString() == b""
        context.set_code.assert_called_once_with(grpc.StatusCode[code])
