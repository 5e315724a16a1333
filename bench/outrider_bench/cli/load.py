"""The command `outrider-bench load`. It ends with 1 when a token was wrong."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import (
    DeviceOption,
    DtypeOption,
    FamiliesOption,
    JsonOption,
    NewTokensOption,
    PlotOption,
    QuestionsOption,
    TargetOption,
    drafter_for,
    source_of,
    sources_of,
    target_of,
)
from outrider_client.cli.access_options import with_access_options
from outrider_client.connection.policy import Patience
from outrider_drafters.contracts.tree_shape import TreeShape

if TYPE_CHECKING:
    from outrider_bench.load.measures.process_use import CoreShares
    from outrider_bench.load.plan import LoadPlan
    from outrider_bench.load.soak import SoakPlan

_TREE = TreeShape()
NO_LINK = "none"


@with_access_options
def load_command(
    clients: Annotated[
        str, typer.Option(help="Numbers of concurrent clients, separated by commas; one run for each.")
    ] = "1,4,16,64",
    seconds: Annotated[
        float | None, typer.Option(help="Seconds per run; default: 10, in a soak as long as its faults take.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests per client, instead of a time; default: no limit.")
    ] = None,
    think: Annotated[
        float | None,
        typer.Option(help="Mean seconds between an answer and the next request; default: 0, in a soak 10."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second over all clients; default: closed loop.")
    ] = None,
    stay: Annotated[
        float | None,
        typer.Option(help="Mean number of answers before a client opens a new session; default: never, in a soak 5."),
    ] = None,
    clients_kind: Annotated[
        str, typer.Option(help="replay (clients draft from the known answer) or real (with a real drafter).")
    ] = "replay",
    tau: Annotated[float, typer.Option(help="Mean acceptance length of replayed drafts.")] = 3.0,
    draft_ms: Annotated[float, typer.Option(min=0, help="Time that a replayed draft takes, in ms.")] = 0.0,
    mode: Annotated[str, typer.Option(help="Mode of the clients.")] = "stop-and-wait",
    breadth: Annotated[int, typer.Option(help="Nodes expanded per level of a draft tree.")] = _TREE.breadth,
    levels: Annotated[int, typer.Option(help="Levels of a draft tree.")] = _TREE.levels,
    budget: Annotated[int, typer.Option(help="Nodes of a draft tree.")] = _TREE.budget,
    prompt_mix: Annotated[
        str | None,
        typer.Option(help="Weights of short and long prompts; default: short:3,long:1; --questions are as they are."),
    ] = None,
    long_tokens: Annotated[int, typer.Option(min=1, help="Least number of tokens of a long prompt.")] = 384,
    questions: QuestionsOption = None,
    families: FamiliesOption = None,
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Prompts per family; default: 8, or all of a category of --questions.")
    ] = None,
    max_new_tokens: NewTokensOption = 64,
    profile: Annotated[
        str, typer.Option(help="Link profile between clients and server (proxy engine); none for no link.")
    ] = NO_LINK,
    link_floor_ms: Annotated[
        float, typer.Option(help="Milliseconds of silence after which the link counts as broken at the earliest.")
    ] = Patience().floor_s * 1e3,
    server: Annotated[
        str | None, typer.Option(help="HOST:PORT of a running server; default: start one for the run.")
    ] = None,
    server_options: Annotated[
        str, typer.Option(help="More options for the `outrider-server serve` that is started, e.g. '--threads 2'.")
    ] = "",
    shared_prefixes: Annotated[
        str | None,
        typer.Option(help="The server's --shared-prefixes; default: none (every prompt is computed), in a soak payer."),
    ] = None,
    target: TargetOption = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="Name of one that ships, DIR[,option=value...] or lookup; replayed clients ask for the features that "
            "it needs; default: the best that ships for the target, or else lookup."
        ),
    ] = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Processes that run the clients.")] = 1,
    own_cores: Annotated[
        bool, typer.Option("--own-cores/--any-cores", help="Pin server and clients to separate cores.")
    ] = True,
    control: Annotated[
        bool, typer.Option(help="Also measure transformers' generate, and this server with clients that do not draft.")
    ] = True,
    limit: Annotated[bool, typer.Option(help="Also measure the limit of the hardware.")] = True,
    hogs: Annotated[
        str | None,
        typer.Option(
            help="Also measure the clients beside each of these hogs, separated by commas: features, wide-drafts, "
            "server-drafts, decode, prompts, silent, or all."
        ),
    ] = None,
    soak_: Annotated[
        bool,
        typer.Option("--soak", help="Soak test: watch memory and answers for --seconds, with faults; one --clients."),
    ] = False,
    cuts: Annotated[int, typer.Option(help="Soak: connections to shut down.")] = 0,
    outages: Annotated[int, typer.Option(help="Soak: silences of the link of 0.5 to 4 s; needs --profile.")] = 0,
    kills: Annotated[int, typer.Option(help="Soak: kills (SIGKILL) and restarts of the server.")] = 0,
    warm_up: Annotated[
        float | None,
        typer.Option(help="Soak: seconds before memory growth is measured; default: a quarter, at most 600."),
    ] = None,
    sample_every: Annotated[float, typer.Option(min=0.1, help="Soak: seconds between memory samples.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Random seed of prompts, drafts, moments and faults.")] = 1,
    json: JsonOption = None,
    plot: PlotOption = None,
    **access: Any,  # Any: each option has its own type
) -> None:
    """Load one server with many clients: throughput, latency, fairness, memory; every token is checked."""
    from outrider_bench.load.clients.access_json import access_to_json
    from outrider_bench.load.clients.client import ClientBehavior, ClientKind
    from outrider_bench.load.clients.hogs import hog_kinds
    from outrider_bench.load.measures.process_use import CoreShares
    from outrider_bench.load.plan import LoadPlan, client_counts, mix_of, options_of
    from outrider_bench.load.soak import plan_soak
    from outrider_client.core.config import Mode

    think_s = (10.0 if soak_ else 0.0) if think is None else think
    directory = target_of(target)
    named = drafter_for(directory, drafter)
    plan = LoadPlan(
        target=directory,
        drafter=sources_of([named])[named],
        clients=client_counts(clients),
        mix=mix_of(prompt_mix, source_of(directory, questions, families), per_family, long_tokens, max_new_tokens),
        habits=ClientBehavior(think_s, rate, requests, 5.0 if soak_ and stay is None else stay),
        kind=cast(ClientKind, clients_kind),
        mode=cast(Mode, mode),
        shape=TreeShape(breadth, levels, budget),
        tau=tau,
        draft_s=draft_ms / 1e3,
        profile=None if profile == NO_LINK else profile,
        link_floor_s=link_floor_ms / 1e3,
        workers=workers,
        seed=seed,
        server=server,
        server_options=options_of(server_options),
        shared_prefixes=shared_prefixes or ("payer" if soak_ else "none"),
        dtype=dtype,
        device=device,
        access=access_to_json(access),
        hogs=hog_kinds(hogs),
    )
    shares = CoreShares.apart(workers) if own_cores and server is None else CoreShares()
    if soak_:
        _soak(plan, plan_soak(plan, seconds, cuts, outages, kills, warm_up, sample_every), shares, json, plot)
    else:
        _load(plan, None if requests is not None else seconds or 10.0, shares, json, plot, control=control, limit=limit)


def _load(
    plan: LoadPlan,
    seconds: float | None,
    shares: CoreShares,
    json: Path | None,
    plot: Path | None,
    *,
    control: bool,
    limit: bool,
) -> None:
    from outrider_bench.load.clients.texts import load_texts, read_texts
    from outrider_bench.load.run import measure_controls, measure_limits, measure_runs, plan_as_dict, title_of
    from outrider_bench.load.tables import control_table, hog_table, latency_table, throughput_table, use_table

    with progress_line() as step:
        path = load_texts(plan.target, plan.mix, plan.seed, plan.dtype, plan.device, step)
        texts = read_texts(path)
        controls = measure_controls(plan, texts, shares, step) if control else []
        limits = measure_limits(plan, texts, shares) if limit else []
        measured = asyncio.run(measure_runs(plan, path, seconds, shares, step, control=control))
    title, runs, streams = title_of(plan), measured.drafting, measured.streams
    show(throughput_table(title, runs, limits, controls, streams), latency_table(runs), use_table(runs))
    if controls:
        show(control_table(controls, streams))
    if measured.beside:
        show(hog_table(runs, measured.beside))
    results = {"runs": [asdict(run) for run in runs], "controls": [asdict(c) for c in controls]}
    results["streams"] = [asdict(run) for run in streams]
    results["beside"] = [asdict(run) for run in measured.beside]
    write_report(json, {**plan_as_dict(plan, texts, shares), **results, "limits": [asdict(one) for one in limits]})
    if plot is not None:
        from outrider_bench.load.plot import plot_load

        plot_load(title, runs, limits, controls, streams, plot)
    for example in (example for run in measured.all for example in run.examples):
        show_line(example, style="red")
    if not all(run.is_right for run in measured.all):
        raise typer.Exit(1)


def _soak(plan: LoadPlan, how: SoakPlan, shares: CoreShares, json: Path | None, plot: Path | None) -> None:
    from outrider_bench.load.clients.texts import load_texts, read_texts
    from outrider_bench.load.run import plan_as_dict, run_soak, title_of
    from outrider_bench.load.tables import soak_table

    with progress_line() as step:
        path = load_texts(plan.target, plan.mix, plan.seed, plan.dtype, plan.device, step)
    result = asyncio.run(run_soak(plan, how, path, shares, show_line))
    show(soak_table(result))
    settings = plan_as_dict(plan, read_texts(path), shares)
    write_report(json, {**settings, "soak": {**asdict(how), **result.to_json()}})
    if plot is not None:
        from outrider_bench.load.plot import plot_memory

        plot_memory(title_of(plan), result.samples, how.warm_up_s, plot)
    for example in (example for counters in result.client_counters for example in counters.examples):
        show_line(example, style="red")
    for deviation in result.deviations:
        show_line(f"deviation: {deviation}", style="red")
    if result.deviations:
        raise typer.Exit(1)
