"""`outrider-models`: show the corpus, train models, make edge bundles, list the embedded models."""

import json
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from outrider_models.corpus import FAMILIES, SPLITS, Family, Sample, generate
from outrider_proto.errors import UsageError

# Commands import what they need when they run: torch takes seconds, and --help must not wait for it.
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _models(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train targets and drafters, and bundle them for edge devices."""


@app.command()
def corpus(
    family: Annotated[str, typer.Option(help=f"Family of samples: {', '.join(FAMILIES)}, or all.")] = "all",
    split: Annotated[str, typer.Option(help=f"Split of the corpus: {' or '.join(SPLITS)}.")] = "train",
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same samples.")] = 0,
    count: Annotated[int, typer.Option(help="Number of samples of each family.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="Write JSON lines to this file; show nothing.")] = None,
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
    out: Annotated[Path, typer.Option(help="Directory for the model, its log and its checkpoint.")],
    recipe: Annotated[str | None, typer.Option(help="Shipped recipe or .toml file; trains on the corpus.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of the drafter to train on --data.")] = None,
    data: Annotated[Path | None, typer.Option(help="With --family: chats, as a file of JSON lines.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Target to draft for: directory or hub name; default: the embedded target.")
    ] = None,
    settings: Annotated[Path | None, typer.Option(help="With --family: .toml file of changed settings.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="With --family: TABLE.KEY=VALUE; repeatable."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Start from a drafter's weights: directory, hub name, or name of an embedded drafter."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in --out.")] = False,
    minutes: Annotated[float | None, typer.Option(help="With --recipe: time limit, decay included.")] = None,
    processes: Annotated[int, typer.Option(help="With --recipe: number of processes that share the work.", min=1)] = 1,
) -> None:
    """Train a target or a drafter from a recipe, or a drafter of any family on your own chats."""
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
            raise UsageError("--data, --settings and --set belong to --family; a recipe holds all of its settings")
        _train_recipe(str(recipe), out, target, start, minutes, resume, processes)


@app.command()
def bundle(
    drafter: Annotated[
        str,
        typer.Option(help="Directory, hub name or embedded drafter, with options as in DIR,tli=1; or lookup."),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the bundle; must be empty or not exist.")],
    target: Annotated[str | None, typer.Option(help="Directory or hub name; default: the embedded target.")] = None,
    weights: Annotated[
        str, typer.Option(help="Number format of the weights: float32, bfloat16, int8 or int4.")
    ] = "int8",
) -> None:
    """Write everything that an edge device needs of a target and a drafter into one directory."""
    from outrider_models.bundling import make_bundle, size_bytes
    from outrider_models.core.embedded import drafter_source, target_dir

    # The names of embedded drafters mean anything only for the embedded target.
    made = make_bundle(target or target_dir(), drafter if target else drafter_source(drafter), weights, out)
    print(f"{out}: {size_bytes(out):,} bytes, {weights}, for target {made.target} ({made.target_fingerprint})")


@app.command()
def info() -> None:
    """List the embedded models with their parameters, sizes, fingerprints and scores."""
    from rich.console import Console
    from rich.table import Table

    from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
    from outrider_models.core.embedded import model_dirs, target_dir

    console = Console()
    table = Table("model", "parameters", "bytes", "fingerprint")
    total = 0
    for name, directory in model_dirs().items():
        size_bytes = sum(path.stat().st_size for path in directory.iterdir())
        fingerprint = target_fingerprint(directory) if name == "target" else ""
        table.add_row(name, f"{_num_parameters(directory):,}", f"{size_bytes:,}", fingerprint)
        total += size_bytes
    console.print(table)
    console.print(f"total {total:,} bytes; tokenizer {tokenizer_fingerprint(target_dir())}")
    for name, families in _scores().items():
        scores = ", ".join(f"{family} {score['passed']}/{score['total']}" for family, score in families.items())
        console.print(f"{name} on held-out prompts: {scores}")


def main() -> None:
    """Run the command; a usage error prints one line and exits with code 2."""
    try:
        app()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _num_parameters(directory: Path) -> int:
    from outrider_drafters.readers.checkpoint import Checkpoint

    checkpoint = Checkpoint(directory)
    return sum(math.prod(checkpoint.shape(tensor)) for tensor in checkpoint.names)


def _scores() -> dict[str, dict[str, dict[str, int]]]:
    """Return model -> family -> {passed, total}; empty if none were recorded."""
    from outrider_models.core.embedded import scores_file

    path = scores_file()
    return json.loads(path.read_text()) if path.is_file() else {}


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
    from outrider_models.training.recipes.train import RecipeRunOptions, train_recipe

    if minutes is not None and minutes <= 0:
        raise UsageError(f"--minutes {minutes}: need more than 0")
    from_drafter = drafter_source(start) if start else None
    options = RecipeRunOptions(recipe, out, Path(target) if target else None, from_drafter, minutes)
    train_recipe(options, resume=resume, processes=processes)


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

    options = ChatRunOptions(family, data, out, target, table, drafter_source(start) if start else None)
    train_on_chats(options, resume=resume)


def _write(samples: Iterator[Sample], out: Path) -> None:
    try:
        with out.open("w") as file:
            for sample in samples:
                file.write(json.dumps(sample.as_dict()) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None


def _show(samples: Iterator[Sample]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for sample in samples:
        console.rule(sample.key, align="left")
        for message in sample.conversation():
            console.print(f"[bold]{message.role}[/]", end=": ")
            console.print(message.content, markup=False)


if __name__ == "__main__":
    main()
