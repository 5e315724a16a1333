"""`outrider-bench load`: options in; tables, report and picture out. Ends with 1 when a token was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from outrider_bench.core.options import (
    ALL_FAMILIES,
    FamiliesOption,
    JsonOption,
    NewTokensOption,
    PlotOption,
    TargetOption,
    families_of,
    target_of,
)
from outrider_bench.core.progress import Step, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.load.clients.client import Habits, Kind
from outrider_bench.load.clients.reach import as_told
from outrider_bench.load.clients.texts import LoadText, load_texts, read_texts
from outrider_bench.load.control import Control, Generate
from outrider_bench.load.figures import LoadRun
from outrider_bench.load.limit import Limit, limits
from outrider_bench.load.measures.process_use import Shares, on_cores
from outrider_bench.load.plan import NO_LINK, LoadPlan, client_counts, mix_of, options_of
from outrider_bench.load.run import run_load
from outrider_bench.load.serving import serving
from outrider_bench.load.soak import Soaked, SoakPlan, soak
from outrider_bench.load.tables import control_table, latency_table, soak_table, throughput_table, use_table
from outrider_client.cli.access_options import with_access_options
from outrider_client.connection.policy import Patience
from outrider_client.core.config import Mode
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_models.core.embedded import DRAFTERS, drafter_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target

_TREE = TreeShape()
_CONTROL_PROMPTS = 16
_UNCACHED_PROMPTS = 4
_LONG_S = 600.0  # to have seen all prompts several times
console = Console(stderr=True)


@with_access_options
def load_command(
    clients: Annotated[str, typer.Option(help="How many at once, one run after another.")] = "1,4,16,64",
    seconds: Annotated[
        float | None, typer.Option(help="To count in each run; 10, or of a soak as long as its faults take.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Each client asks so many times, however long that takes.")
    ] = None,
    think: Annotated[
        float | None, typer.Option(help="Seconds between answer and question, mean; 0, of a soak 10.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: questions a second over all clients.")] = None,
    stay: Annotated[
        float | None, typer.Option(help="Answers until a client leaves and another comes, mean; never, of a soak 5.")
    ] = None,
    clients_kind: Annotated[str, typer.Option(help="replay (drafts the known answer) or real.")] = "replay",
    tau: Annotated[float, typer.Option(help="Of replayed drafts: mean acceptance length.")] = 3.0,
    draft_ms: Annotated[float, typer.Option(min=0, help="Of replayed drafts: time that one takes.")] = 0.0,
    mode: Annotated[str, typer.Option(help="Of the clients.")] = "stop-and-wait",
    breadth: Annotated[int, typer.Option(help="Of the draft trees.")] = _TREE.breadth,
    levels: Annotated[int, typer.Option(help="Of the draft trees.")] = _TREE.levels,
    budget: Annotated[int, typer.Option(help="Of the draft trees.")] = _TREE.budget,
    prompt_mix: Annotated[str, typer.Option(help="Weights of short and long prompts.")] = "short:3,long:1",
    long_tokens: Annotated[int, typer.Option(min=1, help="Of a long prompt, at least.")] = 384,
    families: FamiliesOption = ALL_FAMILIES,
    per_family: Annotated[int, typer.Option(min=1, help="Prompts of each family.")] = 8,
    max_new_tokens: NewTokensOption = 64,
    profile: Annotated[str, typer.Option(help="Link between clients and server (proxy engine); none.")] = NO_LINK,
    link_floor_ms: Annotated[float, typer.Option(help="As for outrider generate.")] = Patience().floor_s * 1e3,
    server: Annotated[str | None, typer.Option(help="HOST:PORT of one that runs already.")] = None,
    server_options: Annotated[str, typer.Option(help="More of outrider-server serve, such as '--threads 2'.")] = "",
    shared_prefixes: Annotated[
        str | None, typer.Option(help="Of the server; none: it reads each prompt anew. Default: none; of a soak payer.")
    ] = None,
    target: TargetOption = None,
    drafter: Annotated[str, typer.Option(help="Embedded name or directory; replayed clients want its features.")] = (
        DRAFTERS[0]
    ),
    dtype: Annotated[str, typer.Option(help="Of the target.")] = "float32",
    device: Annotated[str, typer.Option(help="Of the target.")] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Processes that the clients share.")] = 1,
    own_cores: Annotated[
        bool, typer.Option("--own-cores/--any-cores", help="Server and clients on cores of their own.")
    ] = True,
    control: Annotated[bool, typer.Option(help="Measure transformers' generate too.")] = True,
    limit: Annotated[bool, typer.Option(help="Measure the machine's own limit too.")] = True,
    soak_: Annotated[
        bool, typer.Option("--soak", help="Watch memory and answers for --seconds, with faults; one count of clients.")
    ] = False,
    cuts: Annotated[int, typer.Option(help="Of a soak: connections that are shut down.")] = 0,
    outages: Annotated[int, typer.Option(help="Of a soak: silences of the link, 0.5 to 4 s; needs --profile.")] = 0,
    kills: Annotated[int, typer.Option(help="Of a soak: the server killed (-9) and started again.")] = 0,
    warm_up: Annotated[
        float | None, typer.Option(help="Of a soak: seconds that growth leaves out; a quarter, 600 at most.")
    ] = None,
    sample_every: Annotated[float, typer.Option(min=0.1, help="Of a soak: seconds between memory samples.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of prompts, drafts, moments and faults.")] = 1,
    json: JsonOption = None,
    plot: PlotOption = None,
    **access: Any,  # Any: each option has its own type
) -> None:
    """Many clients of one server: throughput, latency, fairness, memory; every answer checked token for token."""
    think_s = (10.0 if soak_ else 0.0) if think is None else think
    plan = LoadPlan(
        target=target_of(target),
        drafter=drafter_dir(drafter) if drafter in DRAFTERS else resolve_dir(drafter),
        clients=client_counts(clients),
        mix=mix_of(prompt_mix, families_of(families), per_family, long_tokens, max_new_tokens),
        habits=Habits(think_s, rate, requests, 5.0 if soak_ and stay is None else stay),
        kind=cast(Kind, clients_kind),
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
        access=as_told(access),
    )
    shares = Shares.apart(workers) if own_cores and server is None else Shares()
    if soak_:
        _soak(plan, _soak_plan(plan, seconds, cuts, outages, kills, warm_up, sample_every), shares, json, plot)
    else:
        _load(plan, None if requests is not None else seconds or 10.0, shares, json, plot, control=control, limit=limit)


def _load(
    plan: LoadPlan,
    seconds: float | None,
    shares: Shares,
    json: Path | None,
    plot: Path | None,
    *,
    control: bool,
    limit: bool,
) -> None:
    with progress_line() as step:
        path = load_texts(plan.target, plan.mix, plan.seed, plan.dtype, plan.device, step)
        texts = read_texts(path)
        controls = _controls(plan, texts, shares, step) if control else []
        bounds = _limits(plan, texts, shares) if limit else []
        runs = asyncio.run(_runs(plan, path, seconds, shares, step))
    title = _title(plan)
    console.print(throughput_table(title, runs, bounds))
    console.print(latency_table(runs))
    console.print(use_table(runs))
    if controls:
        console.print(control_table(controls))
    results = {"runs": [asdict(run) for run in runs], "controls": [asdict(c) for c in controls]}
    write_report(json, {**_told(plan, texts, shares), **results, "limits": [asdict(bound) for bound in bounds]})
    if plot is not None:
        from outrider_bench.load.plot import plot_load

        plot_load(title, runs, bounds, controls, plot)
    for example in (example for run in runs for example in run.examples):
        console.print(example, style="red")
    if not all(run.is_right for run in runs):
        raise typer.Exit(1)


async def _runs(plan: LoadPlan, texts: Path, seconds: float | None, shares: Shares, step: Step) -> list[LoadRun]:
    done: list[LoadRun] = []
    async with serving(plan.server, plan.serve_options, shares.server) as served:
        for number, count in enumerate(plan.clients):
            step(f"{count} clients", number, len(plan.clients))
            assignment = plan.assignment(count, served.address, texts, shares.clients)
            done.append(await run_load(served, assignment, seconds, plan.workers))
    return done


def _soak_plan(
    plan: LoadPlan,
    seconds: float | None,
    cuts: int,
    outages: int,
    kills: int,
    warm_up: float | None,
    sample_s: float,
) -> SoakPlan:
    if len(plan.clients) != 1:
        raise UsageError(f"clients={','.join(map(str, plan.clients))}: a soak has one number of clients")
    if outages and plan.profile is None:
        raise UsageError(f"outages={outages}: there is no link to fall silent; give --profile, such as lan")
    if kills and plan.server is not None:
        raise UsageError(f"kills={kills}: only a server that this command started can be killed; leave --server out")
    if plan.habits.requests is not None:
        raise UsageError(f"requests={plan.habits.requests}: a soak ends by time or faults; leave it out")
    usual = _LONG_S if seconds is None else min(_LONG_S, seconds / 4)
    return SoakPlan(seconds, cuts, outages, kills, usual if warm_up is None else warm_up, sample_s)


def _soak(plan: LoadPlan, how: SoakPlan, shares: Shares, json: Path | None, plot: Path | None) -> None:
    with progress_line() as step:
        path = load_texts(plan.target, plan.mix, plan.seed, plan.dtype, plan.device, step)
    soaked = asyncio.run(_soaked(plan, how, path, shares))
    console.print(soak_table(soaked))
    write_report(json, {**_told(plan, read_texts(path), shares), "soak": {**asdict(how), **soaked.to_json()}})
    if plot is not None:
        from outrider_bench.load.plot import plot_memory

        plot_memory(_title(plan), soaked.samples, how.warm_up_s, plot)
    for example in (example for tally in soaked.tallies for example in tally.examples):
        console.print(example, style="red")
    for deviation in soaked.deviations:
        console.print(f"deviation: {deviation}", style="red")
    if soaked.deviations:
        raise typer.Exit(1)


async def _soaked(plan: LoadPlan, how: SoakPlan, texts: Path, shares: Shares) -> Soaked:
    async with serving(plan.server, plan.serve_options, shares.server) as served:
        assignment = plan.assignment(plan.clients[0], served.address, texts, shares.clients)
        return await soak(how, served, assignment, plan.workers, lambda line: console.print(line, soft_wrap=True))


def _controls(plan: LoadPlan, texts: Sequence[LoadText], shares: Shares, step: Step) -> list[Control]:
    """Prompts from all over the mix; fewer where each token costs a whole pass."""
    generate = Generate(plan.target, plan.dtype, plan.device, shares.server)
    return [
        generate.control(_spread(texts, count), plan.mix.limit, step, use_cache=use_cache)
        for use_cache, count in ((True, _CONTROL_PROMPTS), (False, _UNCACHED_PROMPTS))
    ]


def _limits(plan: LoadPlan, texts: Sequence[LoadText], shares: Shares) -> list[Limit]:
    context = sum(len(text.prompt) for text in texts) // len(texts)
    with on_cores(shares.server):
        return limits(
            Target.load(str(plan.target), plan.dtype, plan.device), plan.clients, plan.shape.budget + 1, context
        )


def _spread(texts: Sequence[LoadText], count: int) -> list[LoadText]:
    count = min(count, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


def _title(plan: LoadPlan) -> str:
    loop = f"open loop, {plan.habits.rate:g} questions a second" if plan.habits.rate else "closed loop"
    drafts = f"replayed drafts of tau {plan.tau:g}" if plan.kind == "replay" else f"real clients, {plan.drafter.name}"
    return f"{plan.target.name}, {loop}, think time {plan.habits.think_s:g} s, {drafts}, link {plan.profile or NO_LINK}"


def _told(plan: LoadPlan, texts: Sequence[LoadText], shares: Shares) -> dict[str, Any]:  # Any: JSON
    """The settings of a report."""
    kept = asdict(plan) | {"target": str(plan.target), "drafter": str(plan.drafter)}
    return {
        "plan": kept,
        "texts": len(texts),
        "cores": asdict(shares),
        "link_engine": "proxy" if plan.profile else NO_LINK,
    }
