"""`outrider-models`: look at the corpus, train models from recipes, list what is embedded."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from outrider_models.corpus import FAMILIES, SPLITS, Family, Sample, generate
from outrider_proto.errors import UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def corpus(
    family: Annotated[str, typer.Option(help=f"{', '.join(FAMILIES)}, or all.")] = "all",
    split: Annotated[str, typer.Option(help=f"{' or '.join(SPLITS)}.")] = "train",
    seed: Annotated[int, typer.Option(help="Same seed, same samples.")] = 0,
    count: Annotated[int, typer.Option(help="Samples of each family.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="Write JSON lines there instead of showing the samples.")] = None,
) -> None:
    """Show generated samples, or write them as JSON lines."""
    if family not in (*FAMILIES, "all"):
        raise UsageError(f"--family {family}: choose one of {', '.join(FAMILIES)}, all")
    if split not in SPLITS:
        raise UsageError(f"--split {split}: choose one of {', '.join(SPLITS)}")
    chosen = FAMILIES if family == "all" else (cast(Family, family),)
    samples = (s for name in chosen for s in generate(name, split, seed, count))
    if out:
        _write(samples, out)
    else:
        _show(samples)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Directory for model, log and checkpoint.")],
    recipe: Annotated[str | None, typer.Option(help="A shipped recipe, or a .toml file: the embedded corpus.")] = None,
    family: Annotated[str | None, typer.Option(help="A drafter of this family, for any target, on --data.")] = None,
    data: Annotated[Path | None, typer.Option(help="Chats as JSON lines: messages, or ShareGPT conversations.")] = None,
    target: Annotated[str | None, typer.Option(help="Directory or hub name; default: the embedded target.")] = None,
    settings: Annotated[Path | None, typer.Option(help="With --family: a .toml file of what differs.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="With --family: TABLE.KEY=VALUE; repeat.")] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Go on from a drafter's weights: directory, hub name, or an embedded one's name."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    minutes: Annotated[float | None, typer.Option(help="With --recipe: finish, decay included, within this.")] = None,
    processes: Annotated[int, typer.Option(help="With --recipe: share the work among so many.", min=1)] = 1,
) -> None:
    """Train a target or a drafter: from a recipe on the embedded corpus, or a family on your own chats."""
    if (recipe is None) == (family is None):
        raise UsageError("train: need either --recipe NAME, or --family F and --data FILE")
    if family is not None:
        if data is None:
            raise UsageError(f"--family {family}: needs --data FILE, chats as JSON lines")
        if minutes is not None or processes != 1:
            raise UsageError("--minutes and --processes belong to --recipe; for several GPUs use `accelerate launch`")
        _train_on_chats(family, data, out, target, settings, change or [], start, resume)
    else:
        if data or settings or change:
            raise UsageError("--data, --settings and --set belong to --family; a recipe says everything itself")
        _train_recipe(str(recipe), out, target, start, minutes, resume, processes)


@app.command()
def bundle(
    drafter: Annotated[
        str, typer.Option(help="Directory or hub name, with its options: DIR,tli=1; lookup; or an embedded one's name.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the bundle, empty or not there.")],
    target: Annotated[str | None, typer.Option(help="Directory or hub name; default: the embedded target.")] = None,
    weights: Annotated[str, typer.Option(help="float32, bfloat16, int8 or int4.")] = "int8",
) -> None:
    """Put all that an edge device needs of a target and a drafter into one directory."""
    from outrider_models.bundling import make_bundle, size_bytes  # torch takes seconds to import: not for --help
    from outrider_models.core.embedded import drafter_source, target_dir

    made = make_bundle(target or target_dir(), drafter if target else drafter_source(drafter), weights, out)
    print(f"{out}: {size_bytes(out):,} bytes, {weights}, for target {made.target} ({made.target_fingerprint})")


@app.command()
def info() -> None:
    """List the embedded models: parameters, sizes, fingerprints, scores."""
    from outrider_models.cli.info import embedded_models, embedded_scores, tokenizer_mark

    console = Console()
    table = Table("model", "parameters", "bytes", "fingerprint")
    models = embedded_models()
    for model in models:
        table.add_row(model.name, f"{model.num_parameters:,}", f"{model.size_bytes:,}", model.fingerprint or "")
    console.print(table)
    console.print(f"total {sum(model.size_bytes for model in models):,} bytes; tokenizer {tokenizer_mark()}")
    for name, families in embedded_scores().items():
        told = ", ".join(f"{family} {score['passed']}/{score['total']}" for family, score in families.items())
        console.print(f"{name} on held-out prompts: {told}")


def main() -> None:
    """Entry point: a caller's mistake is one line and exit code 2."""
    try:
        app()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _train_recipe(
    recipe: str,
    out: Path,
    target: str | None,
    start: str | None,
    minutes: float | None,
    resume: bool,
    processes: int,
) -> None:
    from outrider_models.core.embedded import drafter_source
    from outrider_models.training.recipes import train as training

    if minutes is not None and minutes <= 0:
        raise UsageError(f"--minutes {minutes}: need more than 0")
    from_drafter = drafter_source(start) if start else None
    order = training.RecipeRunOptions(recipe, out, Path(target) if target else None, from_drafter, minutes)
    training.train_recipe(order, resume=resume, processes=processes)


def _train_on_chats(
    family: str,
    data: Path,
    out: Path,
    target: str | None,
    settings: Path | None,
    changes: list[str],
    start: str | None,
    resume: bool,
) -> None:
    from outrider_models.core.embedded import drafter_source
    from outrider_models.core.tables import merged, parse_changes, read_toml

    table = merged(read_toml(settings) if settings else {}, parse_changes(changes))
    if find_spec("accelerate") is None:
        raise UsageError("training on chats needs accelerate: pip install 'outrider[train]'")
    from outrider_models.training.chats.train import ChatRunOptions, train_on_chats

    order = ChatRunOptions(family, data, out, target, table, drafter_source(start) if start else None)
    train_on_chats(order, resume=resume)


def _write(samples: Iterator[Sample], out: Path) -> None:
    try:
        with out.open("w") as file:
            for sample in samples:
                file.write(json.dumps(sample.as_dict()) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None


def _show(samples: Iterator[Sample]) -> None:
    console = Console(highlight=False)
    for sample in samples:
        console.rule(sample.key, align="left")
        for message in sample.conversation():
            console.print(f"[bold]{message.role}[/]", end=": ")
            console.print(message.content, markup=False)


if __name__ == "__main__":
    main()
