"""`outrider-models`: show the corpus, train models, make edge bundles, list the embedded models."""

import math
from datetime import datetime
from typing import Annotated

import typer

from outrider_models.core.options import BundleOptions, DistillOptions, DraftVocabOptions, TrainOptions, held_out_file
from outrider_proto.errors import UsageError
from outrider_proto.files import read_json
from outrider_proto.options.command import Program, Version, with_options
from outrider_proto.terminal.text import print_line

# Commands import what they need when they run: torch takes seconds, and --help must not wait for it.
app = typer.Typer(cls=Program, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _models(version: Version = False) -> None:
    """Train targets and drafters, and bundle them for edge devices."""


@app.command()
@with_options(TrainOptions)
def train(
    options: TrainOptions,
    change: Annotated[list[str] | None, typer.Option("--set", help="TABLE.KEY=VALUE; repeatable.")] = None,
) -> None:
    """Train a drafter of any family on your own chats; on several GPUs with `accelerate launch`."""
    from outrider_models.core.embedded import drafter_source
    from outrider_models.core.tables import merged, parse_changes, read_toml

    table = merged(read_toml(options.settings_file) if options.settings_file else {}, parse_changes(change or []))
    start = options.start and drafter_source(options.start)
    from outrider_models.training.train import ChatRunOptions
    from outrider_models.training.train import train as run

    wanted = ChatRunOptions(options.family, options.data, options.out, options.target, table, start)
    run(wanted, resume=options.resume)


@app.command()
@with_options(BundleOptions)
def bundle(options: BundleOptions) -> None:
    """Write everything that an edge device needs of a target and a drafter into one directory."""
    from outrider_drafters.checkpoints.source import DrafterSource
    from outrider_models.bundling import make_bundle, size_bytes, weights_note
    from outrider_models.core.embedded import drafter_source, target_source

    out, drafter = options.out, drafter_source(options.drafter, options.target)
    source = DrafterSource.parse(drafter).with_draft_vocab(options.draft_vocab)
    made = make_bundle(target_source(options.target), source, options.weights, out)
    stored = weights_note(out, made)
    print_line(f"{out}: {size_bytes(out):,} bytes, {stored}, for target {made.target} ({made.target_fingerprint})")


@app.command()
def get(name: Annotated[str, typer.Argument(help="Model of the catalog, as `info` lists them: smollm2.")]) -> None:
    """Download a model and install it under its name, which every --target then takes."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from outrider_drafters.checkpoints.catalog import catalog
    from outrider_models.catalog import get_model
    from outrider_proto.terminal.console import TerminalConsole

    if (model := catalog().get(name)) is not None:
        print_line(f"{name}: {model}")
    console = TerminalConsole(stderr=True)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=model.size_bytes if model else None)
        try:
            file = get_model(name, lambda place, done: bar.update(task, description=place, completed=done))
        except KeyboardInterrupt:
            print_line(f"{name}: interrupted; get it again to go on", err=True)
            raise typer.Exit(130) from None
    print_line(f"{name}: installed, {file}")


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="Models, as `info` lists them.")],
) -> None:
    """Remove models that `get` has installed, with what was made of them, or targets of the cache."""
    from outrider_models.catalog import remove_model

    for name in names:
        print_line(f"{name}: removed, {remove_model(name):,} bytes")


@app.command()
@with_options(DistillOptions)
def distill(options: DistillOptions) -> None:
    """Let a target write chats to train its drafters on: questions of all kinds, and its greedy answers."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from outrider_models.core.embedded import target_source
    from outrider_models.core.questions import read_questions
    from outrider_models.distillation.distill import Distillation, DistillProgress
    from outrider_models.distillation.writer import TargetWriter
    from outrider_proto.terminal.console import TerminalConsole

    questions = None if options.prompts is None else read_questions(options.prompts)
    writer = TargetWriter.load(target_source(options.target), options.batch, options.dtype)
    run = Distillation(writer, options, questions)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), "{task.fields[status]}")
    with Progress("answer tokens", *columns, console=TerminalConsole(stderr=True)) as bar:
        task = bar.add_task("", total=options.tokens, completed=run.done.tokens, status="")

        def report(done: DistillProgress) -> None:
            bar.update(task, completed=done.tokens, status=f"{done.chats} chats, {done.dropped} dropped")

        run.run(report)
    done = f"{run.done.chats:,} chats, {run.done.tokens:,} answer tokens"
    print_line(f"{options.out}: {done}; held out: {held_out_file(options.out)}")


@app.command("draft-vocab")
@with_options(DraftVocabOptions)
def draft_vocab(options: DraftVocabOptions) -> None:
    """Choose the tokens that drafters draft: those the target writes most often. Shows the share of replies covered."""
    from rich.table import Table

    from outrider_drafters.checkpoints.draft_vocabulary import write_draft_vocab
    from outrider_models.core.embedded import target_source
    from outrider_models.distillation.draft_vocabulary import choose_draft_vocab
    from outrider_proto.terminal.console import TerminalConsole

    out, held_out, beside = options.out, options.held_out, held_out_file(options.data)
    if held_out is None and beside.is_file() and beside.stat().st_size:  # distill leaves it empty where it holds none
        held_out = beside
    found = choose_draft_vocab(target_source(options.target), options.data, held_out, options.size)
    try:
        write_draft_vocab(out, found.tokens)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    table = Table("held-out replies", "tokens", *(f"in {count:,}" for count in found.sizes))
    for kind in found.kinds:
        table.add_row(kind.kind, f"{kind.num_tokens:,}", *(f"{share:.1%}" for share in kind.shares))
    TerminalConsole().print(table)
    print_line(f"{out}: {len(found.tokens):,} tokens, the most frequent of {found.num_chosen_from:,} reply tokens")


@app.command()
def families() -> None:
    """List the families of drafters, those of installed packages too, with the options that each takes."""
    from outrider_drafters.load import PLUG_INS, all_families, options_of

    for family in all_families():
        package = f" ({PLUG_INS.package(family.name)})" if family.name in PLUG_INS.names else ""
        print_line(f"{family.name}{package}: reads {family.features}; trees: {family.trees}; offline: {family.offline}")
        for option in options_of(family):
            print_line(f"  {option.name}: {option.help} [{option.takes}]")


@app.command()
def info() -> None:
    """List the models that ship, those to get and those of the cache, with sizes, fingerprints and scores."""
    from rich.table import Table

    from outrider_drafters.checkpoints.catalog import catalog, installed_file, is_installed
    from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
    from outrider_drafters.readers.checkpoint import Checkpoint
    from outrider_drafters.readers.target_cache import cached_targets
    from outrider_models.core.embedded import EMBEDDED, drafter_dir, model_dirs, shipped_drafters, target_dir
    from outrider_proto.terminal.console import TerminalConsole

    console = TerminalConsole()
    table = Table("model", "for", "parameters", "bytes", "fingerprint")
    total = 0
    shipped = {name: drafter_dir(name) for target in catalog() for name in shipped_drafters(target)}
    for name, directory in (model_dirs() | shipped).items():
        size_bytes = sum(path.stat().st_size for path in directory.iterdir())
        fingerprint = target_fingerprint(directory) if name == "target" else ""
        owner = "" if name == "target" else name.partition("/")[0] if name in shipped else EMBEDDED
        weights = Checkpoint(directory)
        num_parameters = sum(math.prod(weights.shape(tensor)) for tensor in weights.names)
        table.add_row(name, owner, f"{num_parameters:,}", f"{size_bytes:,}", fingerprint)
        total += size_bytes
    console.print(table)
    console.print(f"total {total:,} bytes; tokenizer {tokenizer_fingerprint(target_dir())}")
    for name, model in catalog().items():
        where = installed_file(name) if is_installed(name) else f"not installed: outrider-models get {name}"
        console.print(f"{name}: {model}; {where}", soft_wrap=True, highlight=False)
    for cached in cached_targets():
        what = f"{cached.dtype}, {cached.size_bytes:,} bytes, last used {datetime.fromtimestamp(cached.used_at):%F %R}"
        source = f"made of {cached.source or 'an unknown file'}{', changed or gone since' if cached.is_stale else ''}"
        console.print(f"cached {cached.directory.name}: {what}, {source}", soft_wrap=True, highlight=False)
    scores_file = target_dir().with_name("scores.json")  # on held-out prompts, measured after training
    recorded = read_json(scores_file) if scores_file.is_file() else {}
    for name, families in recorded.items():
        scores = ", ".join(f"{family} {score['passed']}/{score['total']}" for family, score in families.items())
        console.print(f"{name} on held-out prompts: {scores}")


def main() -> None:
    """Run the command; an error prints one line and exits with code 2 for usage, 1 for what this machine cannot do."""
    app(prog_name="outrider-models")


if __name__ == "__main__":
    main()
