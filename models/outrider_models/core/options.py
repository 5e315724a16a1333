"""What the commands take, besides the settings of a training: each field is an option, and a key of --set if expert."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag

TARGET_HELP = "Directory, GGUF file, hub name or name got with get; default: the embedded one."
Target = Annotated[str | None, Flag(TARGET_HELP)]
WeightFormat = Literal["float32", "bfloat16", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    out: Annotated[Path, Flag("Directory for the model, its log and its checkpoint.")]
    family: Annotated[str, Flag("Family of the drafter: see `outrider-models families`.")]
    data: Annotated[Path, Flag("Chats, as a file of JSON lines; or a directory of served answers with features.")]
    target: Target = None
    settings_file: Annotated[Path | None, Flag(".toml file of changed settings.", name="settings")] = None
    start: Annotated[
        str | None, Flag("Start from a drafter's weights: directory, hub name, or name of one that ships.")
    ] = None
    resume: Annotated[bool, Flag("Continue from the checkpoint in --out.")] = False


@dataclass(frozen=True, slots=True)
class BundleOptions:
    drafter: Annotated[
        str, Flag("Directory, hub name or name of one that ships, with options as in DIR,tli=1; or lookup.")
    ]
    out: Annotated[Path, Flag("Directory for the bundle; must be empty or not exist.")]
    target: Target = None
    weights: Annotated[WeightFormat, Flag("Number format of the weights.")] = "int8"
    draft_vocab: Annotated[
        str | None, Flag("Tokens to draft: a file of draft-vocab, or the first N of the drafter's own.")
    ] = None


@dataclass(frozen=True, slots=True)
class DistillOptions:
    out: Annotated[Path, Flag("File of JSON lines for the chats; what it holds is kept and counted.")]
    target: Target = None
    prompts: Annotated[Path | None, Flag("Questions to answer, as JSON lines; default: the target asks, too.")] = None
    tokens: Annotated[int, Flag("Answer tokens wanted.")] = 1_000_000
    max_new_tokens: Annotated[int, Flag("Most tokens of an answer.", expert=True)] = 384
    batch: Annotated[int, Flag("Chats written at once.", expert=True)] = 64
    held_out: Annotated[float, Flag("Share of the prompts for OUT.held-out.jsonl.", expert=True)] = 0.03
    seed: Annotated[int, Flag("Random seed of the questions.", expert=True)] = 0
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Flag("Number format of the weights; auto: what the machine computes in.", expert=True),
    ] = "auto"

    def __post_init__(self) -> None:
        for name in ("tokens", "max_new_tokens", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', '-')}={getattr(self, name)}: need at least 1")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"held-out={self.held_out}: need 0 or more, and less than 1")


def held_out_file(chats: Path) -> Path:
    """Return the file beside a file of chats for those held out of it."""
    return chats.with_suffix(f".held-out{chats.suffix}")


@dataclass(frozen=True, slots=True)
class DraftVocabOptions:
    data: Annotated[Path, Flag("Chats whose replies the target wrote, as JSON lines: see distill.")]
    out: Annotated[Path, Flag("File for the tokens, or the directory of a drafter that is to use them.")]
    target: Target = None
    size: Annotated[int | None, Flag("Tokens to choose; default: a sixth of the target's vocabulary.")] = None
    held_out: Annotated[
        Path | None,
        Flag("Chats to measure the coverage on; default: the .held-out file beside --data, or every twentieth chat."),
    ] = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UsageError(f"size={self.size}: need at least 1")
