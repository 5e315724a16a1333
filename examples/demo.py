"""A complete run on one machine: a server, an emulated 4G link, a client, and an outage during an answer.

    python examples/demo.py            (or `make demo`)

Real questions are answered by a real language model, each by plain streaming and with the drafter ahead. It prints the
answers as they are written and a table of statistics, checks every answer against the target's own, and writes demo.png
and demo.json to out/. Without a network to get the model from, it goes on with the embedded pair.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from demonstration.demo_run import DemoRun, Plan, check
from demonstration.picture import draw
from demonstration.questions import Question, questions_of
from demonstration.recording import Recording
from demonstration.terminal import legend, outage_summary, speed_summary, table
from rich.console import Console

from outrider_bench import ServerProcess, provenance, write_report
from outrider_client import AsyncClient, ClientConfig, LocalModels, OutriderError
from outrider_drafters import resolve_dir
from outrider_models import get_model, shipped_drafters, target_dir
from outrider_netsim import EngineChoice, EngineError, Link, ProfileError, profile_named

console = Console(highlight=False)

REAL, EMBEDDED = "smollm2", "embedded"
QUESTIONS = Path(__file__).parent / "questions.jsonl"
LINKS = {
    "kernel": "emulated (netem in network namespaces)",
    "tun": "emulated (TUN devices in network namespaces)",
    "proxy": "emulated (TCP relay)",
}


class Pair(NamedTuple):
    """Names or directories of target and drafter."""

    target: str
    drafter: str

    @property
    def directory(self) -> Path:
        return target_dir() if self.target == EMBEDDED else resolve_dir(self.target)

    @property
    def options(self) -> list[str]:
        # In float32 every answer is the target's own. No prefixes are kept: whoever asks a question first would pay
        # for its prompt, and the other find it there.
        names = ["--target", self.target, "--drafter", self.drafter]
        return [*names, "--dtype", "float32", "--server-draft", "--shared-prefixes", "none"]


def main(
    target: Annotated[str, typer.Option(help="Target: a name (smollm2, embedded), a directory or a GGUF file.")] = REAL,
    drafter: Annotated[
        str | None, typer.Option(help="Drafter for it. Default: the best that ships, else lookup.")
    ] = None,
    questions: Annotated[
        Path, typer.Option(help="JSON lines of questions; the embedded target has its own.")
    ] = QUESTIONS,
    count: Annotated[int, typer.Option(min=1, help="Number of questions.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 96,
    seed: Annotated[int, typer.Option(help="Random seed of the link, and of the embedded target's prompts.")] = 1,
    profile: Annotated[str, typer.Option(help="Link profile, one of `outrider-netsim list`.")] = "paper-4g",
    engine: Annotated[
        EngineChoice, typer.Option(help="Engine of the link; auto takes the best that this machine allows.")
    ] = "auto",
    cut: Annotated[int, typer.Option(help="Question, counted from 0, that is asked again with an outage.")] = 0,
    cut_after: Annotated[int, typer.Option(help="Number of tokens of that answer before the outage.")] = 20,
    outage_s: Annotated[float, typer.Option(help="Length of the outage in seconds.")] = 3.0,
    out: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json.")] = Path("out"),
) -> None:
    """Run the demo. Exit code 1: an answer is not the target's own. Exit code 2: the demo cannot run."""
    try:
        pair = chosen_pair(target, drafter)
        started = time.perf_counter()
        asked = questions_of(None if pair.target == EMBEDDED else questions, count, seed)
        plan = Plan(seed, profile_named(profile), max_new_tokens, min(cut, len(asked) - 1), cut_after, outage_s)
        console.print(f"Starting the server with {pair.target} ...", markup=False)
        with ServerProcess(pair.options) as server:
            recording, engine_used = asyncio.run(run_demo(plan, asked, server.address, pair, engine))
    except (OutriderError, ProfileError, EngineError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    report(recording, plan, engine_used, pair, out)
    console.print(f"{out}/demo.png, {out}/demo.json; {time.perf_counter() - started:.0f} s in total")
    if not all(answer.is_targets_own for answer in recording.answers):
        raise typer.Exit(1)


def chosen_pair(target: str, drafter: str | None) -> Pair:
    """Return the target, installed if need be, and its drafter; the embedded pair where it cannot be had."""
    if target == REAL:
        try:
            get_model(REAL)
        except OutriderError as error:
            console.print(f"{error}; going on with the embedded pair", markup=False)
            target, drafter = EMBEDDED, None
    shipped = shipped_drafters(None if target == EMBEDDED else target)
    return Pair(target, drafter or next(iter(shipped), "lookup"))


async def run_demo(
    plan: Plan, asked: list[Question], server: str, pair: Pair, engine: EngineChoice
) -> tuple[Recording, str]:
    """Connect a client to the server over an emulated link and run the demo; also return the engine's name."""
    config = ClientConfig(target=pair.target, drafter=pair.drafter, max_new_tokens=plan.max_new_tokens)
    models = await asyncio.to_thread(ready_models, config)
    async with (
        Link(plan.profile, server, engine, plan.seed) as link,
        AsyncClient(replace(config, server=link.address), models=models) as client,
    ):
        console.print(f"server on {server}, client on {link.address}, link profile {plan.profile.name}")
        console.print(f"link: {LINKS[link.engine]}; {link.why}", markup=False)
        console.print(legend())
        recording = await DemoRun(plan, asked, link, client, console).run()
    console.print("\nAsking the target alone, by transformers' generate ...")
    await asyncio.to_thread(check, recording, asked, pair.directory, models, plan.max_new_tokens)
    return recording, link.engine


def ready_models(config: ClientConfig) -> LocalModels:
    """Load drafter and tokenizer before the first answer is timed."""
    models = LocalModels.load(config)
    models.decode([0])
    return models


def report(recording: Recording, plan: Plan, engine: str, pair: Pair, out: Path) -> None:
    """Print the statistics, and write them and the picture to files."""
    console.print(table(recording))
    console.print(speed_summary(recording))
    console.print(outage_summary(recording))
    made = {"link": LINKS[engine], **pair._asdict(), "plan": asdict(plan)}
    write_report(out / "demo.json", made | asdict(recording))
    title = f"{Path(pair.target).name} through an emulated {plan.profile.name} link: streamed, and with a drafter ahead"
    draw(recording, out / "demo.png", title, footnote(plan, engine, pair))


def footnote(plan: Plan, engine: str, pair: Pair) -> str:
    """Describe how the picture was made."""
    made = provenance()
    return (
        f"{made['command']} | outrider {version('outrider')}, drafter {pair.drafter}, seed {plan.seed} | "
        f"{made['processor']}, {made['cores']} cores | link: {LINKS[engine]}, mean round trip "
        f"{plan.profile.round_trip_ms:.1f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
