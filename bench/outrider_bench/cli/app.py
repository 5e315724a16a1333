"""The command `outrider-bench`. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.

The modules beside this one declare options and import what a command needs only when it runs.
"""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from outrider_bench.cli.drafters import (
    depth_sweep_command,
    drafters_command,
    edge_weights_command,
    routing_command,
    trace_command,
)
from outrider_bench.cli.features import codec_command, prompt_rows_command, staleness_command
from outrider_bench.cli.load import load_command
from outrider_bench.cli.network import network_command
from outrider_bench.cli.pair import (
    eval_command,
    exact_command,
    offline_command,
    overhead_command,
    passes_command,
    recover_command,
    verify_cost_command,
)
from outrider_bench.cli.serving import gateway_command, privacy_command, ray_command
from outrider_bench.cli.spec import spec_command
from outrider_bench.cli.tcp import tcp_command
from outrider_bench.cli.virtual import record_command, sweep_command, virtual_command
from outrider_proto.errors import LinkError, OutriderError, Refusal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure server and client together.

    Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed.
    """


app.command("trace")(trace_command)
app.command("eval")(eval_command)
app.command("exact")(exact_command)
app.command("offline")(offline_command)
app.command("overhead")(overhead_command)
app.command("recover")(recover_command)
app.command("drafters")(drafters_command)
app.command("depth-sweep")(depth_sweep_command)
app.command("edge-weights")(edge_weights_command)
app.command("routing")(routing_command)
app.command("privacy")(privacy_command)
app.command("tcp")(tcp_command)
app.command("codec")(codec_command)
app.command("staleness")(staleness_command)
app.command("prompt-rows")(prompt_rows_command)
app.command("verify-cost")(verify_cost_command)
app.command("passes")(passes_command)
app.command("network")(network_command)
app.command("gateway")(gateway_command)
app.command("load")(load_command)
app.command("ray")(ray_command)
app.command("record")(record_command)
app.command("virtual")(virtual_command)
app.command("sweep")(sweep_command)
app.command("spec")(spec_command)


def main() -> None:
    """Run the command; print every deliberate error as one line and exit with its code."""
    # As for Ctrl-C: the default action would leave servers behind that a command has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except OutriderError as error:
        typer.secho(f"outrider-bench: {error}", fg="red", err=True)
        raise SystemExit(_exit_code(error)) from None


def _exit_code(error: OutriderError) -> int:
    match error:
        case Refusal():
            return 3
        case LinkError():
            return 4
        case _:
            return 2
