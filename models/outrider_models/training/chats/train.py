"""Starts a training run on chats: reads and checks everything before it writes anything."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tensors_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import target_dir
from outrider_models.core.tables import Table
from outrider_models.training.chats.batches import reply_frequencies
from outrider_models.training.chats.chats import Chat, read_chats
from outrider_models.training.chats.checkpoint import check_config, has_state, write_config
from outrider_models.training.chats.config import DataSettings, TrainConfig, make_train_config
from outrider_models.training.chats.tokens import ChatTokens, need_chat_template, tokenize
from outrider_models.training.chats.trainer import ChatTrainer, make_accelerator
from outrider_models.training.chats.validation import Validator
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.core.teacher import Teacher, target_facts
from outrider_models.training.families import trainable_family
from outrider_models.training.recipes.train import check_output_dir
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class ChatRunOptions:
    """Options of one run on chats."""

    family: str
    data: Path
    out: Path
    target: str | None  # directory or hub name; None: the embedded target
    changes: Table  # settings that differ from the family's defaults
    start: str | None = None  # source of the initial weights; None: random ones


@dataclass(frozen=True, slots=True, eq=False)
class ChatSplit:
    train: list[ChatTokens]
    held_out: list[ChatTokens]
    num_dropped: int  # chats without a reply within data.max_length


def train_on_chats(
    options: ChatRunOptions,
    *,
    resume: bool = False,
    console: Console | None = None,
    stop_after_updates: int | None = None,
) -> ChatTrainer:
    """Train to the end and return the trainer. Raises UsageError before anything is written."""
    directory = resolve_dir(options.target or target_dir())
    facts = target_facts(directory)
    config = make_train_config(trainable_family(options.family), facts, options.changes)
    check_output_dir(options.out, resume, has_state)
    split = _split(read_chats(options.data), _tokenizer(directory), config.data)
    initial_weights = DrafterFiles.open(DrafterSource(options.start)) if options.start else None
    description = _description(options, config, directory, initial_weights)
    if resume:
        check_config(options.out, description)
    accelerator = make_accelerator(config)
    dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    teacher = Teacher.load(directory, dtype, accelerator.device)
    torch.manual_seed(config.data.seed)
    drafter = config.family.make_drafter(
        config.drafter, facts, lambda: reply_frequencies(split.train, facts.sizes.vocab)
    )
    drafter.init_from_lm_head(teacher.lm_head)
    if initial_weights is not None:
        drafter.load_weights(initial_weights)
    # Raises UsageError now, before anything is written, if the target lacks what the family requests.
    teacher.run(torch.zeros(1, 2, dtype=torch.int64, device=accelerator.device), drafter.teacher_request)
    # Weights come from one seed in all processes, masks and noise from one for each.
    torch.manual_seed(config.data.seed + 1 + accelerator.process_index)
    if accelerator.is_main_process:
        options.out.mkdir(parents=True, exist_ok=True)
        write_config(options.out, description)
    accelerator.wait_for_everyone()
    quiet = None if accelerator.is_main_process else Console(quiet=True)
    with ProgressReporter(options.out, options.family, console or quiet) as reporter:
        reporter.say(_summary(split, drafter, accelerator.num_processes))
        prompts = [chat.prompt for chat in split.held_out]
        validator = Validator(teacher, prompts, config.validation) if prompts else None
        run = ChatTrainer(
            accelerator, config, teacher, drafter, split.train, validator, options.out, reporter, stop_after_updates
        )
        run.finish()
    return run


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory}: has no tokenizer that transformers can load ({error})") from error
    need_chat_template(tokenizer, directory)
    return tokenizer


def _split(chats: Sequence[Chat], tokenizer: PreTrainedTokenizerBase, settings: DataSettings) -> ChatSplit:
    """Tokenize chats and draw those to hold out, at most a tenth."""
    found = [tokenize(tokenizer, chat, settings.max_length) for chat in chats]
    kept = [chat for chat in found if chat is not None]
    if not kept:
        raise UsageError(
            f"data: no reply among the first {settings.max_length} tokens of any of {len(chats)} chats: "
            "raise data.max_length"
        )
    count = min(settings.held_out, len(kept) // 10)
    chosen = set(random.Random(f"held out/{settings.seed}").sample(range(len(kept)), count))
    train = [chat for i, chat in enumerate(kept) if i not in chosen]
    return ChatSplit(train, [kept[i] for i in sorted(chosen)], len(found) - len(kept))


def _description(
    options: ChatRunOptions, config: TrainConfig, directory: Path, initial_weights: DrafterFiles | None
) -> dict[str, Any]:  # Any: JSON values
    """Return all settings that the result depends on; others may change when a run is resumed."""
    return {
        "family": config.family.name,
        "drafter": asdict(config.drafter),
        "schedule": asdict(config.schedule),
        "length": asdict(config.length),
        "data": asdict(config.data),
        "file": hashlib.sha256(options.data.read_bytes()).hexdigest(),
        "target": target_fingerprint(directory),
        **({} if initial_weights is None else {"start": _fingerprint(initial_weights)}),
    }


def _fingerprint(files: DrafterFiles) -> str:
    return tensors_fingerprint({name: files.checkpoint.read(name) for name in files.names})


def _summary(split: ChatSplit, drafter: torch.nn.Module, processes: int) -> str:
    num_trained = sum(parameter.numel() for parameter in drafter.parameters() if parameter.requires_grad)
    tokens = sum(chat.num_labels for chat in split.train)
    dropped = f", {split.num_dropped} left out (no reply within data.max_length)" if split.num_dropped else ""
    warning = "" if split.held_out else "; fewer than 10 chats, so none are held out and no tau is measured"
    return (
        f"{num_trained:,} parameters are trained on {tokens:,} reply tokens of {len(split.train):,} chats, "
        f"{len(split.held_out)} held out{dropped}; processes: {processes}{warning}"
    )
