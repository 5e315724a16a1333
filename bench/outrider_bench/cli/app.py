"""The command `outrider-bench`: parses, runs, prints. Exit codes: 2 usage, 3 refusal, 4 link, 1 a check that failed."""

from __future__ import annotations

import typer

from outrider_bench.load.command import load_command
from outrider_bench.network.command import network_command
from outrider_bench.studies.drafters.comparison_commands import depth_sweep_command, drafters_command
from outrider_bench.studies.drafters.edge_weights import edge_weights_command
from outrider_bench.studies.drafters.routing_command import routing_command
from outrider_bench.studies.drafters.trace_command import trace_command
from outrider_bench.studies.features.codec_command import codec_command
from outrider_bench.studies.features.prompt_rows_command import prompt_rows_command
from outrider_bench.studies.features.staleness_command import staleness_command
from outrider_bench.studies.pair.pair_commands import eval_command, exact_command, overhead_command, recover_command
from outrider_bench.studies.pair.verify_cost_command import verify_cost_command
from outrider_bench.studies.serving.gateway_command import gateway_command
from outrider_bench.studies.serving.privacy_command import privacy_command
from outrider_bench.studies.serving.ray_command import ray_command
from outrider_bench.studies.tcp.tcp_command import tcp_command
from outrider_bench.virtual.commands import record_command, sweep_command, virtual_command
from outrider_proto.errors import LinkError, OutriderError, Refusal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command("trace")(trace_command)
app.command("eval")(eval_command)
app.command("exact")(exact_command)
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
app.command("network")(network_command)
app.command("gateway")(gateway_command)
app.command("load")(load_command)
app.command("ray")(ray_command)
app.command("record")(record_command)
app.command("virtual")(virtual_command)
app.command("sweep")(sweep_command)


@app.callback()
def _bench() -> None:
    """Measurements that need both sides."""


def main() -> None:
    """Entry point: every deliberate error is one line and an exit code."""
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
