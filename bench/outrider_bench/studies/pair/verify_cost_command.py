"""The command `outrider-bench verify-cost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.progress import Counter, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.pair.verify_cost import Cost, verify_costs
from outrider_models.core.embedded import target_dir
from outrider_server.engine.target import Target

console = Console(stderr=True)


def verify_cost_command(
    target: Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: embedded.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that come before.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each size.")] = 30,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; default: as the server, 1 for a small target.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")] = None,
) -> None:
    """What a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""
    loaded = Target.load(target or str(target_dir()), dtype, device)
    if (count := threads or (1 if loaded.is_small else None)) is not None:
        torch.set_num_threads(count)
    with progress_line() as step:
        costs = verify_costs(loaded, context, repeats, Counter(step, "passes", repeats))
    console.print(_table(loaded.name, context, costs))
    how = {"target": loaded.name, "context": context, "repeats": repeats, "dtype": dtype, "device": _device(device)}
    write_report(json, {**how, "costs": [asdict(cost) for cost in costs]})
    if plot is not None:
        from outrider_bench.studies.pair.plots import plot_verify_costs

        plot_verify_costs(f"{loaded.name}, {dtype}, {_device(device)}, {context} tokens before", costs, plot)


def _table(name: str, context: int, costs: Sequence[Cost]) -> Table:
    rows = [
        [
            f"{cost.tokens}",
            *(f"{ms:.2f}" for ms in (cost.median_ms, cost.fastest_ms, cost.slowest_ms)),
            f"{cost.ratio:.2f}",
        ]
        for cost in costs
    ]
    columns = ("new tokens", "median ms", "fastest", "slowest", "x decode")
    return table(f"a pass of {name} after {context} tokens", columns, rows)


def _device(name: str) -> str:
    """With the accelerator's own name."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name
