"""Two network namespaces, A (the client's side) and B (the server's), with their sockets, devices and commands.

    namespaces = Namespaces()
    await namespaces.start()                                   # EngineError with a remedy if refused
    server = await namespaces.socket("B")                      # a TCP socket that lives in B, usable from here
    tun = await namespaces.tun("A")                            # a descriptor that reads and writes packets
    await namespaces.call("A", "outrider_netsim.namespaces.interfaces:set_up", name="outrider0")
    (status,) = await namespaces.run(["curl", "http://127.0.0.1:8000"]) # in A
    await namespaces.aclose()

`call` runs a function of this package inside the holder process, in the namespace of that side. Arguments and result
are JSON, or the result is a PassedDescriptor. Everything ends with this process, however it ends (namespace_holder.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from socket import AF_UNIX, SOCK_SEQPACKET, recv_fds, socketpair
from socket import socket as Socket
from typing import Any, Self

from outrider_netsim.core.async_resource import AsyncResource
from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.command import forward_signals, process_ended
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, LINK_INTERFACE, Side, SocketKind
from outrider_netsim.namespaces.processes import MARK, own_mark

MESSAGE_BYTES = 1 << 17
START_TIMEOUT_S = 30.0  # a new Python on a busy machine
ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0


class Namespaces(AsyncResource):
    """The parent's side of a namespace holder. Use from one event loop."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self._channel: Socket | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # Any: JSON or a descriptor
        self._next_id = 0

    async def start(self) -> Self:
        """Create the namespaces. Raises EngineError when this machine refuses; nothing is left behind then."""
        if sys.platform != "linux":
            raise EngineError(f"{sys.platform} has no network namespaces: use --engine proxy")
        self._channel, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        with theirs:
            self._holder = start_module("outrider_netsim.namespaces.namespace_holder", theirs)
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive)
        # The holder reports that it is ready, or why not, as the answer to request 0.
        ready = self._expect()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await ready
        except BaseException as error:
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"the namespace holder did not start within {START_TIMEOUT_S:g} s: try again"
                ) from None
            raise
        return self

    async def aclose(self) -> None:
        """End the commands, the holder and with it both namespaces; safe to call twice."""
        holder, self._holder = self._holder, None
        self._hang_up()
        if holder is not None:
            await ended(holder)

    async def socket(self, side: Side, kind: SocketKind = "tcp", congestion: str | None = None) -> Socket:
        """Open a non-blocking IPv4 socket on that side, neither bound nor connected.

        `congestion` is its congestion control, if not the namespace's. Raises EngineError where the kernel has it not.
        """
        return await self._opened(side, "open_socket", kind=kind, congestion=congestion)

    async def listener(self, side: Side, host: str, port: int = 0, congestion: str | None = None) -> Socket:
        """Open a non-blocking listening TCP socket on that side. Raises OSError, and EngineError as `socket` does."""
        return await self._opened(side, "open_listener", host=host, port=port, congestion=congestion)

    async def sniffer(self, side: Side, interface: str) -> Socket:
        """Open a socket that reads the first packets of TCP connections over an interface of that side."""
        return await self._opened(side, "open_sniffer", interface=interface)

    async def _opened(self, side: Side, function: str, **arguments: object) -> Socket:
        opened = Socket(fileno=await self.call(side, f"outrider_netsim.namespaces.interfaces:{function}", **arguments))
        opened.setblocking(False)
        return opened

    async def tun(self, side: Side, name: str = LINK_INTERFACE) -> int:
        """Create a TUN device on that side and return its non-blocking descriptor; close it.

        The link's own has the side's address, others have none.
        """
        function = "outrider_netsim.namespaces.interfaces:open_tun"
        address = LINK_ADDRESSES[side] if name == LINK_INTERFACE else None
        return int(await self.call(side, function, name=name, address=address))

    async def call(self, side: Side, function: str, **arguments: object) -> Any:  # Any: JSON, or a descriptor
        """Run `package.module:function` of this package on that side and return its result.

        Re-raises its EngineError and OSError as they are, anything else as EngineError.
        """
        return await self._ask(op="call", side=side, function=function, arguments=arguments)

    async def run(self, argv: Sequence[str], environments: Sequence[Mapping[str, str]] = ({},)) -> list[int]:
        """Run a command in A once for each environment, all at once; return their statuses (128 + n for signal n).

        It has our stdin, stdout and folder; its environment is added to the one that we had at the start. Signals sent
        to us meanwhile are forwarded to all copies. Raises OSError (FileNotFoundError, PermissionError) when the
        command cannot be executed.
        """
        commands = range(self._next_id + 1, self._next_id + 1 + len(environments))

        def pass_on(number: int) -> None:
            for command in commands:
                self._send(op="signal", run=command, number=number)

        # Handlers first: a command may already run, and someone who sees it may signal us, before our next line does.
        # The event loop calls them, so never before the requests are sent.
        with forward_signals(pass_on):
            answers = [self._ask(op="run", argv=list(argv), env=dict(env), cwd=os.getcwd()) for env in environments]
            # All are awaited: a copy that could not be executed leaves no other one behind.
            statuses = await asyncio.gather(*answers, return_exceptions=True)
        found = []
        for status in statuses:
            if isinstance(status, BaseException):
                raise status
            found.append(128 - status if status < 0 else status)
        return found

    async def watch(self) -> None:
        """Wait until the holder ends by itself, and raise EngineError."""
        self._next_id += 1
        await self._expect()

    def _ask(self, **request: object) -> asyncio.Future[Any]:
        self._next_id += 1
        answer = self._expect()
        try:
            self._send(id=self._next_id, **request)
        except BaseException:
            del self._waiting[self._next_id]
            raise
        return answer

    def _expect(self) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = answer
        return answer

    def _send(self, **message: object) -> None:
        text = json.dumps({"id": self._next_id, **message}).encode()
        if len(text) > MESSAGE_BYTES:
            raise EngineError(f"{message.get('op')}: {len(text)} bytes, more than the {MESSAGE_BYTES} of a message")
        while True:
            try:
                self._open_channel.send(text)
                return
            except BlockingIOError:  # the holder is busy, for milliseconds
                select.select([], [self._open_channel], [], ANSWER_TIMEOUT_S)
            except (BrokenPipeError, ConnectionResetError):
                raise EngineError("the namespace holder has ended: start the link again") from None

    def _receive(self) -> None:
        try:
            text, descriptors, _, _ = recv_fds(self._open_channel, MESSAGE_BYTES, 1)
        except (BlockingIOError, ConnectionResetError):
            return
        if not text:
            self._hang_up()
            return
        message = json.loads(text)
        answer = self._waiting.pop(message["id"], None)
        # The caller was cancelled; nobody will take the answer.
        if answer is None or answer.done():
            # Received descriptors are open in this process already.
            _close(descriptors)
        elif "error" in message:
            answer.set_exception(_error(message["error"]))
        else:
            answer.set_result(descriptors[0] if descriptors else message["value"])

    def _hang_up(self) -> None:
        if self._channel is None:
            return
        channel, self._channel = self._channel, None
        asyncio.get_running_loop().remove_reader(channel)
        channel.close()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(EngineError("the namespace holder has ended: start the link again"))
                # Marks the exception as retrieved, so that asyncio does not log it when no one awaits it.
                answer.exception()

    @property
    def _open_channel(self) -> Socket:
        if self._channel is None:
            raise EngineError("the namespaces are not started, or have ended: use `async with`")
        return self._channel


def start_module(module: str, *channels: Socket | int) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process; its arguments are inherited descriptors and our process id.

    Its environment carries our mark, by which processes.py recognizes what we left behind.
    """
    numbers = [channel if isinstance(channel, int) else channel.fileno() for channel in channels]
    arguments = [sys.executable, "-P", "-m", module, *map(str, numbers), str(os.getpid())]
    return subprocess.Popen(arguments, pass_fds=numbers, env=os.environ | {MARK: own_mark()})


async def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process ends by itself, for a few seconds, then kill it."""
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process_ended(process)
    except TimeoutError:
        # It hangs in a system call.
        pass
    finally:
        process.kill()
        process.wait()


def _error(description: dict[str, Any]) -> Exception:  # Any: JSON
    message = description["message"]
    match description["kind"]:
        case "EngineError":
            return EngineError(message)
        case "OSError":
            return OSError(description["errno"], message, description["file"])
        case kind:
            return EngineError(f"{kind}: {message}")


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
