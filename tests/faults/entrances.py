"""Runs rows of the table of hostile inputs: `entrances.py GROUP` sends each row of the group through its entrance.

For each row the child prints a line of JSON: its name, what was answered, as a person or a caller sees it, processor
seconds, and MiB that it took at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, asynccontextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server"), str(HERE.parent / "client" / "gateway")]
NAME = "hostile"  # of each file; the suffix is the row's
MEMORY = 8 * 2**30  # of address space: past it this child ends, and not the machine
CONFIG = "OUTRIDER_CONFIG"

RUNNING = ExitStack()  # what entrances start
MADE = tempfile.TemporaryDirectory(prefix="outrider-entrances-")

Entrance = Callable[[Path], str]  # what a row sends is in that file

COMMANDS = {
    "outrider generate --file": "client generate hi --file {}",
    "outrider generate --private": "client generate hi --private {}",
    "outrider generate --json-schema": "client generate hi --json-schema {}",
    "outrider describe --key-file": "client describe --tls --key-file {} --server 127.0.0.1:9",
    "outrider describe --ca": "client describe --ca {} --server 127.0.0.1:9",
    "outrider gateway --api-key-file": "client gateway --api-key-file {}",
    "outrider config": "client config",
    "outrider-server config": "server config --config {}",
    "outrider-server keys list": "server keys list --keys {}",
    "outrider-netsim show": "netsim show {}",
    "outrider-netsim trace check": "netsim trace check {}",
    "outrider-netsim fit": "netsim fit {}",
    "outrider-models train --data": "models train --data {} --out out --family moa",
    "outrider-models train --settings": "models train --data {0} --settings {0} --out out --family moa",
    "outrider-models draft-vocab": "models draft-vocab --data {} --out out.json",
    "outrider-bench show": "bench show {}",
    "outrider-bench network --config": "bench network --config {}",
    "outrider-bench drafters --questions": "bench drafters --questions {}",
    "outrider-bench humaneval --problems": "bench humaneval --problems {}",
    "outrider-lab virtual": "lab virtual --tape {}",
}


def _run(program: str, room: str, arguments: list[str], config: str = "") -> str:
    """A command's exit code and what it says."""
    main = import_module(f"outrider_{room}.cli.app").main
    code, errors = 0, StringIO()
    with (
        mock.patch.object(sys, "argv", [program, *arguments]),
        mock.patch.dict(os.environ, {CONFIG: config}),
        redirect_stderr(errors),
        redirect_stdout(StringIO()),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return f"exit {code}: {errors.getvalue()}"


def _command(name: str) -> Entrance:
    """A command that is given a file."""
    program = name.split()[0]
    room, *arguments = COMMANDS[name].split()
    import_module(f"outrider_{room}.cli.app")

    def run(file: Path) -> str:
        config = str(file) if name == "outrider config" else ""
        return _run(program, room, [argument.format(file) for argument in arguments], config)

    return run


def _client(command: str, description: bytes | None = None) -> Entrance:
    """A command of a client whose server answers all calls with what a row sends, unless it describes itself."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def run(file: Path) -> str:
        data = file.read_bytes()
        stream = grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([data]))
        unary = grpc.unary_unary_rpc_method_handler(lambda request, context: data)
        described = grpc.unary_unary_rpc_method_handler(lambda request, context: description or data)
        services = {
            "Verifier": {"Session": stream, "Describe": described},
            "Bundles": {"Manifest": unary, "Fetch": stream},
        }
        handlers = [
            grpc.method_handlers_generic_handler(f"outrider.v1.{name}", methods) for name, methods in services.items()
        ]
        server = grpc.server(ThreadPoolExecutor(4), handlers=handlers)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            return _run("outrider", "client", command.format(address).split())
        finally:
            server.stop(None)

    return run


def _pull() -> Entrance:
    from stage import verifier

    from outrider_proto.description import description_to_proto

    return _client("pull {} --out pulled", description_to_proto(verifier().describe()).SerializeToString())


def _reader(read: Callable[[Path], object]) -> Entrance:
    """What becomes of a file that `read` is given."""
    from outrider_proto.errors import Refusal, UsageError

    def run(file: Path) -> str:
        try:
            read(file)
        except (Refusal, UsageError) as error:
            return f"refused: {error}"
        return "read"

    return run


def _gguf() -> Entrance:
    from outrider_drafters.readers.gguf_file import GgufFile

    return _reader(GgufFile.read)


def _template() -> Entrance:
    """A chat template; the one after it writes what it ought to."""
    from outrider_drafters.readers.chat_template import ChatTemplate

    chat = [{"role": "user", "content": "Hello"}]

    def read(file: Path) -> None:
        try:
            ChatTemplate({}).render(file.read_text(), chat)
        finally:
            assert ChatTemplate({}).render("{{ messages[0].content }}", chat) == "Hello"

    return _reader(read)


def _directory(source: Path, changed: str, read: Callable[[Path], object]) -> Entrance:
    """A directory as `source`, where one file of JSON has what a row sends in place of some of its entries."""

    def read_changed(file: Path) -> None:
        directory = shutil.copytree(source, file.parent / "directory")
        path = directory / changed
        path.write_text(json.dumps(json.loads(path.read_text()) | json.loads(file.read_text())))
        read(directory)

    return _reader(read_changed)


def _tokenizer() -> Entrance:
    from outrider_client.models.tokenizer import TargetTokenizer
    from outrider_models.core.embedded import target_dir

    return _directory(target_dir(), "tokenizer.json", lambda directory: TargetTokenizer(directory).try_out())


def _target() -> Entrance:
    from tiny_targets import build

    from outrider_server.engine.target import Target

    made = tempfile.mkdtemp(dir=MADE.name)
    build("llama").save_pretrained(made)
    return _directory(Path(made), "config.json", lambda directory: Target.load(str(directory)))


def _bundle() -> Entrance:
    from outrider_drafters.checkpoints.target_weights import TargetWeights
    from outrider_drafters.load import load_drafter
    from outrider_models.bundling import make_bundle
    from outrider_models.core.embedded import drafter_dir, target_dir

    made = Path(MADE.name) / "bundle"
    make_bundle(target_dir(), drafter_dir("moa"), "float32", made)
    return _directory(made, "bundle.json", lambda directory: load_drafter(directory, TargetWeights.load(directory)))


def _history() -> Entrance:
    """What lies where a draft history was: what the next answers tell of it."""
    from outrider_client.models.draft_history import DraftHistory

    def read(file: Path) -> str:
        kept = DraftHistory("here:1", "tokenizer", 1000, 1, file.parent / "draft_history")
        kept.add((1, 2, 3))
        kept.file.unlink()
        file.rename(kept.file)
        assert not len(kept.texts().tokens)
        kept.add((4,))
        return f"told: {'; '.join(kept.take_warnings())}"

    return read


def _schema() -> Entrance:
    """A schema as a server compiles it, for one of its payers."""
    from outrider_drafters.contracts.schema_compiler import SchemaCompiler
    from outrider_models.core.embedded import target_dir

    compiler = SchemaCompiler(target_dir(), 2048, [1])
    compiler.warm()
    return _reader(lambda file: compiler.compile(file.read_text(), "payer"))


def _call(method: str) -> Entrance:
    """A call without a key to a real server: its status, or its first answer."""
    import grpc
    from stage import served, server

    served()

    async def call(data: bytes) -> str:
        options = [("grpc.max_send_message_length", -1)]
        async with server() as it, grpc.aio.insecure_channel(it.address, options=options) as channel:
            made = channel.unary_stream(method)(data)
            try:
                answer = await asyncio.wait_for(made.read(), 30)
                return f"answered {answer!r}"
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"

    return lambda file: asyncio.run(call(file.read_bytes()))


@cache
def _embedded():
    """A real server with the embedded pair, in a thread, and its metrics; it runs until the process ends."""
    from in_thread import InThread

    from outrider_models.core.embedded import target_dir
    from outrider_server.config.config import ServerConfig, TelemetryConfig
    from outrider_server.rpc.server import Server

    telemetry = TelemetryConfig(metrics_port=0)
    config = ServerConfig(str(target_dir()), port=0, threads=1, edge_bundle=False, telemetry=telemetry)
    return RUNNING.enter_context(InThread(lambda: Server.build(config)))


def _session() -> Entrance:
    """A schema that a request of a session names."""
    from talk import calling

    from outrider_proto.frames import Decode, Sampling, TokenRules

    server = _embedded()

    async def ask(schema: str) -> str:
        async with calling(server.address) as talk:
            await talk.open(server.verifier.describe())
            await talk.send(Decode(1, 0, (5, 6), 7, 3, sampling=Sampling(rules=TokenRules(schema, answer_from=3))))
            return f"refused: {(await talk.refusal()).message}"

    return lambda file: asyncio.run(ask(file.read_text()))


@cache
def _gateway() -> tuple[str, int]:
    """The address of a real gateway with short deadlines."""
    from in_thread import InThread

    from outrider_client import ClientConfig
    from outrider_client.core.gateway_config import GatewayConfig
    from outrider_client.gateway import serving
    from outrider_client.models.local_models import LocalModels

    for name in ("_HEADERS_S", "_BODY_S", "_KEEP_ALIVE_S"):
        RUNNING.enter_context(mock.patch.object(serving, name, 0.3))
    client = ClientConfig(_embedded().address)
    models = LocalModels.load(client)

    @asynccontextmanager
    async def started():
        async with serving.listening(client, GatewayConfig(port=0), models) as (gateway, sockets):
            running = asyncio.create_task(gateway.serve(sockets))
            yield sockets[0].getsockname()
            gateway.should_exit = True
            await running

    return RUNNING.enter_context(InThread(started))


def _metrics() -> tuple[str, int]:
    host, port = _embedded().reporter.metrics_address.rsplit(":", 1)
    return host, int(port)


def _bytes(address: tuple[str, int], data: bytes, seconds: float = 30) -> str:
    """All that is answered until the other side ends the connection."""
    answer = b""
    with socket.create_connection(address, timeout=seconds) as caller, suppress(ConnectionError):
        caller.sendall(data)
        while piece := caller.recv(65536):
            answer += piece
    return answer.decode(errors="replace")


def _crowd(address: tuple[str, int], path: str) -> Entrance:
    """A hundred connections that send the same and stay, and then a request."""

    def run(file: Path) -> str:
        before = threading.active_count()
        with ExitStack() as held:
            for _ in range(100):
                with suppress(ConnectionError):
                    held.enter_context(socket.create_connection(address)).sendall(file.read_bytes())
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            answer = _bytes(address, request)
            is_served = re.match("HTTP/1.[01] 200 ", answer)
            return f"{'served' if is_served else answer}, with {threading.active_count() - before} threads more"

    return run


def _raw(address: tuple[str, int]) -> Entrance:
    return lambda file: _bytes(address, file.read_bytes())


ENTRANCES: dict[str, Callable[[], Entrance]] = {
    **{name: lambda name=name: _command(name) for name in COMMANDS},
    "a GGUF file": _gguf,
    "a chat template": _template,
    "a tokenizer.json": _tokenizer,
    "a target's config.json": _target,
    "a bundle.json": _bundle,
    "a draft history": _history,
    "a JSON schema": _schema,
    "a server's health": lambda: _call("/grpc.health.v1.Health/Watch"),
    "a server's unary call": lambda: _call("/outrider.v1.Verifier/Describe"),
    "a server's session": _session,
    "a gateway": lambda: _raw(_gateway()),
    "a gateway's callers": lambda: _crowd(_gateway(), "/health"),
    "a metrics port's callers": lambda: _crowd(_metrics(), "/metrics"),
    "a client's describe": lambda: _client("describe --server {}"),
    "a client's generate": lambda: _client("generate hi --target embedded --mode stop-and-wait --server {}"),
    "a client's pull": _pull,
}


def _peak_mib(*, reset: bool = False) -> int:
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main(group: str) -> None:
    from test_strangers import ROWS

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    entrances: dict[str, Entrance] = {}
    for row in (row for row in ROWS if row.group == group):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # what a command writes goes there
            file = Path(folder) / f"{NAME}{row.suffix}"
            row.write(file)
            if row.entrance not in entrances:
                entrances[row.entrance] = ENTRANCES[row.entrance]()
            before, started = _peak_mib(reset=True), time.process_time()
            answer = entrances[row.entrance](file).replace(f"{folder}/", "")
            seconds = time.process_time() - started
            print(json.dumps([row.name, answer, seconds, _peak_mib() - before]), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    with MADE, RUNNING:
        main(sys.argv[1])
