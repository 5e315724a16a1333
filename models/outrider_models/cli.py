"""`outrider-models`: look at the corpus, train models from recipes, list what is embedded."""

import json
import sys
from collections.abc import Iterator
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
    recipe: Annotated[str, typer.Option(help="Name of a shipped recipe, or a .toml file.")],
    out: Annotated[Path, typer.Option(help="Directory for model, log and checkpoint.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Finish, decay included, within this time.")] = None,
    processes: Annotated[int, typer.Option(help="Share the work among so many processes of one thread.", min=1)] = 1,
    target: Annotated[Path | None, typer.Option(help="Target of a drafter; default: the embedded one.")] = None,
) -> None:
    """Train a target or a drafter from a recipe."""
    from outrider_models.training.start import Order, start  # torch takes seconds to import: not for --help

    if minutes is not None and minutes <= 0:
        raise UsageError(f"--minutes {minutes}: need more than 0")
    start(Order(recipe, out, target, minutes), resume=resume, processes=processes)


@app.command()
def info() -> None:
    """List the embedded models: parameters, sizes, fingerprints, scores."""
    from outrider_models.info import embedded_models, embedded_scores, tokenizer_mark

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
