"""`outrider-server`: options in, exit codes out (0 stopped, 2 the caller's mistake)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_models.embedded import drafter_source, model_dirs
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.tree import MAX_NODES
from outrider_server.config import Limits, ServerConfig

if TYPE_CHECKING:
    from outrider_server.verifier import Verifier

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
_DEFAULT = Limits()


@app.callback()
def root() -> None:
    """The server of Outrider: hosts a target model and verifies what edge clients draft."""


@app.command()
def serve(
    target: Annotated[
        str | None,
        typer.Option(help="Directory or hub name of the target, a Hugging Face causal LM; the embedded one."),
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Drafter whose features to offer, repeatable; the embedded target's.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 50051,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the target; default: all cores, 1 for a small target.", min=1)
    ] = None,
    session_ttl: Annotated[float, typer.Option(help="Seconds a session outlives its stream.")] = _DEFAULT.session_ttl_s,
    max_sessions: Annotated[int, typer.Option(help="Sessions held at once.")] = _DEFAULT.max_sessions,
    max_context: Annotated[int | None, typer.Option(help="Tokens a session may hold; default: the target's.")] = None,
    max_nodes: Annotated[int, typer.Option(help="Nodes a draft tree may have.")] = MAX_NODES,
    server_draft: Annotated[
        bool, typer.Option("--server-draft", help="Draft for sessions that ask for it, at this server's cost.")
    ] = False,
    pace: Annotated[
        str | None,
        typer.Option(help="Stretch every pass to the time of named hardware (paper) or of a TOML file: emulation."),
    ] = None,
    edge_bundle: Annotated[
        bool, typer.Option(help="Hand out what a device needs of target and drafter (`outrider pull`).")
    ] = True,
    edge_weights: Annotated[
        list[str] | None,
        typer.Option(help="Of edge bundles: float32, bfloat16, int8 or int4; repeatable, the first is the default."),
    ] = None,
    edge_cache: Annotated[Path | None, typer.Option(help="Folder for edge bundles; the user's cache folder.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Write address, target and taps here as JSON.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is under way and stop."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        limits = Limits(session_ttl_s=session_ttl, max_sessions=max_sessions, max_nodes=max_nodes)
        models = _models(target, drafter or [])
        config = ServerConfig(
            *(*models, host, port, dtype, device, max_context, threads, limits),
            pace=pace,
            server_draft=server_draft,
            edge_bundle=edge_bundle,
            edge_weights=tuple(edge_weights or ()),
            edge_cache=edge_cache,
        )
        asyncio.run(_serve(config, ready_file))
    except OutriderError as error:
        typer.echo(f"outrider-server: {error}", err=True)
        raise SystemExit(2) from error


def _models(target: str | None, drafters: list[str]) -> tuple[str, tuple[str, ...]]:
    """The target and its drafters as told, or the embedded ones. Raises UsageError."""
    if target is not None:
        return target, tuple(drafters)
    embedded = model_dirs()
    if "target" not in embedded:
        raise UsageError("this installation has no embedded target: name one with --target")
    home = embedded.pop("target")
    return str(home), tuple(map(drafter_source, drafters)) or tuple(map(str, embedded.values()))


async def _serve(config: ServerConfig, ready_file: Path | None) -> None:
    from outrider_server.server import Server  # torch and transformers: only when there is something to serve

    server = Server.build(config)
    await server.start()
    try:
        stop = _stop_signal()  # before anybody is told that we are ready
        _announce(server.address, server.verifier, ready_file, hands_out=server.bundles is not None)
        await server.serve(stop)
    finally:
        await server.stop()


def _announce(address: str, verifier: Verifier, ready_file: Path | None, *, hands_out: bool = False) -> None:
    about = verifier.describe()
    pace = None if verifier.pace is None else verifier.pace.name
    if ready_file is not None:
        taps = [{"fingerprint": tap.fingerprint, "family": tap.family, "width": tap.width} for tap in about.taps]
        ready = {"address": address, "target": about.target_name, "taps": taps, "pace": pace}
        partial = ready_file.with_name(ready_file.name + ".part")
        partial.write_text(json.dumps(ready) + "\n")
        partial.replace(ready_file)  # whoever waits for the file never sees half of it
    offers = [f"features for {', '.join(tap.family for tap in about.taps)}"]
    if verifier.drafts_with:
        offers.append(f"drafting with {', '.join(verifier.drafts_with)}")
    if hands_out:
        offers.append("edge bundles")
    if verifier.pace is not None:
        offers.append(f"paced as {pace} (emulated times: {verifier.pace.source})")
    typer.echo(f"outrider-server: ready on {address}, target {about.target_name}, {', '.join(offers)}", err=True)


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def main() -> None:
    """Entry point of the console command."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would log what we say in one line ourselves
    app(prog_name="outrider-server")
