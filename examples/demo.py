"""A complete run on one machine: a server, an emulated 5G link, a client, and an outage during an answer.

    python examples/demo.py            (or `make demo`)

It prints the answers as they are written and a table of statistics, and writes demo.png and demo.json to out/.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from demonstration.demo_run import DemoRun, Plan
from demonstration.picture import draw
from demonstration.recording import Recording
from demonstration.terminal import legend, table
from rich.console import Console

from outrider_bench import ServerProcess, provenance, write_report
from outrider_client import AsyncClient, ClientConfig, LocalModels, OutriderError
from outrider_models import drafter_dir, target_dir
from outrider_netsim import EngineChoice, EngineError, Link, ProfileError, profile_named

console = Console(highlight=False)

LINKS = {
    "kernel": "emulated (netem in network namespaces)",
    "tun": "emulated (TUN devices in network namespaces)",
    "proxy": "emulated (TCP relay)",
}


class Pair(NamedTuple):
    """Directories of target and drafter."""

    target: Path
    drafter: Path

    @property
    def options(self) -> list[str]:
        return ["--target", str(self.target), "--drafter", str(self.drafter)]


def main(
    seed: Annotated[int, typer.Option(help="Random seed of the prompts and the link.")] = 1,
    per_family: Annotated[int, typer.Option(min=1, help="Number of prompts of each of the six families.")] = 2,
    profile: Annotated[str, typer.Option(help="Link profile, one of `outrider-netsim list`.")] = "paper-5g",
    engine: Annotated[
        EngineChoice, typer.Option(help="Engine of the link; auto takes the best that this machine allows.")
    ] = "auto",
    drafter: Annotated[str, typer.Option(help="Name of an embedded drafter, or a directory.")] = "moa",
    cut_from: Annotated[int, typer.Option(help="First answer, counted from 0, in which the link may be cut.")] = 6,
    cut_after: Annotated[int, typer.Option(help="Number of tokens of that answer before the cut.")] = 20,
    outage_s: Annotated[float, typer.Option(help="Length of the outage in seconds.")] = 3.0,
    out: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json.")] = Path("out"),
) -> None:
    """Run the demo. Exit code 1: the outage changed the answer. Exit code 2: the demo cannot run."""
    started = time.perf_counter()
    try:
        pair = Pair(target_dir(), Path(drafter) if Path(drafter).is_dir() else drafter_dir(drafter))
        plan = Plan(seed, per_family, profile_named(profile), cut_from, cut_after, outage_s)
        console.print("Starting the server ...")
        with ServerProcess(pair.options) as server:
            recording, engine_used = asyncio.run(run_demo(plan, server.address, pair, engine))
    except (OutriderError, ProfileError, EngineError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    report(recording, plan, engine_used, drafter, out)
    console.print(f"{out}/demo.png, {out}/demo.json; {time.perf_counter() - started:.0f} s in total")
    if any(answer.as_without_outage is False for answer in recording.answers):
        raise typer.Exit(1)


def report(recording: Recording, plan: Plan, engine: str, drafter: str, out: Path) -> None:
    """Print the statistics, and write them and the picture to files."""
    console.print()
    console.print(table(recording))
    console.print(outage_summary(recording))
    made = {"link": LINKS[engine], "drafter": drafter, "plan": asdict(plan)}
    write_report(out / "demo.json", made | asdict(recording))
    title = f"Outrider through an emulated {plan.profile.name} link"
    draw(recording, out / "demo.png", title, footnote(plan, engine, drafter))


async def run_demo(plan: Plan, server: str, pair: Pair, engine: EngineChoice) -> tuple[Recording, str]:
    """Connect a client to the server over an emulated link and run the demo; also return the engine's name."""
    async with Link(plan.profile, server, engine, plan.seed) as link:
        config = ClientConfig(server=link.address, target=pair.target, drafter=pair.drafter, mode="proactive")
        models = await asyncio.to_thread(ready_models, config)
        async with AsyncClient(config, models=models) as client:
            console.print(f"server on {server}, client on {link.address}, link profile {plan.profile.name}")
            console.print(f"link: {LINKS[link.engine]}; {link.why}", markup=False)
            console.print(legend())
            return await DemoRun(plan, link, client, console).run(), link.engine


def ready_models(config: ClientConfig) -> LocalModels:
    """Load drafter and tokenizer before the first answer is timed."""
    models = LocalModels.load(config)
    models.decode([0])
    return models


def outage_summary(recording: Recording) -> str:
    """Summarize the outage and the answer that it interrupted."""
    if not recording.outages:
        return "The link was not cut: every answer ended earlier. Choose a smaller --cut-from or --cut-after."
    answer, (cut, restored) = recording.cut_answer, recording.outages[0]
    verified = sum(mark.count for mark in answer.marks if mark.kind == "verified")
    outcome = "the same as" if answer.as_without_outage else "NOT the same as"
    return (
        f"Outage of {restored - cut:.1f} s in the {answer.family} answer: the drafter wrote "
        f"{verified + answer.statistics.rolled_back} tokens alone, the target kept {verified} of them; "
        f"the answer is {outcome} without the outage."
    )


def footnote(plan: Plan, engine: str, drafter: str) -> str:
    """Describe how the picture was made."""
    made = provenance()
    return (
        f"{made['command']} | outrider {version('outrider')}, {drafter} drafter, seed {plan.seed} | "
        f"{made['processor']}, {made['cores']} cores | link: {LINKS[engine]}, mean round trip "
        f"{plan.profile.round_trip_ms:.1f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
