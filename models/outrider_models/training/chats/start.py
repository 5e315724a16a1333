"""From options to a run on chats: read, check, and only then write."""

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
from outrider_models.training.chats.checkpoint import check_course, has_state, note_course
from outrider_models.training.chats.config import Course, DataSettings, course_of
from outrider_models.training.chats.tokens import ChatTokens, need_chat_template, tokenize
from outrider_models.training.chats.trainer import ChatRun, make_accelerator
from outrider_models.training.chats.validation import Examiner
from outrider_models.training.core.progress import Reporter
from outrider_models.training.core.teacher import Teacher, target_facts
from outrider_models.training.families import trainable
from outrider_models.training.recipes.start import check_place
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class ChatOrder:
    """What to train, on what, where, for which target (None: the embedded one), with which settings changed, from whose
    weights (None: fresh ones)."""

    family: str
    data: Path
    out: Path
    target: str | None
    changes: Table
    start: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    taught: list[ChatTokens]
    held_out: list[ChatTokens]
    num_dropped: int  # chats without a reply among their first tokens


def start_on_chats(
    order: ChatOrder, *, resume: bool = False, console: Console | None = None, stop_after_updates: int | None = None
) -> ChatRun:
    """Train to the end. Raises UsageError before anything is written."""
    directory = resolve_dir(order.target or target_dir())
    facts = target_facts(directory)
    course = course_of(trainable(order.family), facts, order.changes)
    check_place(order.out, resume, has_state)
    split = _split(read_chats(order.data), _tokenizer(directory), course.data)
    begin_with = DrafterFiles.open(DrafterSource(order.start)) if order.start else None
    what = _described(order, course, directory, begin_with)
    if resume:
        check_course(order.out, what)
    accelerator = make_accelerator(course)
    dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    teacher = Teacher.load(directory, dtype, accelerator.device)
    torch.manual_seed(course.data.seed)
    pupil = course.family.pupil(course.drafter, facts, lambda: reply_frequencies(split.taught, facts.sizes.vocab))
    pupil.start_from(teacher.lm_head)
    if begin_with is not None:
        pupil.go_on_from(begin_with)
    teacher.says(torch.zeros(1, 2, dtype=torch.int64, device=accelerator.device), pupil.needs)  # or a UsageError now
    torch.manual_seed(course.data.seed + 1 + accelerator.process_index)  # masks and noise: each process its own
    if accelerator.is_main_process:
        order.out.mkdir(parents=True, exist_ok=True)
        note_course(order.out, what)
    accelerator.wait_for_everyone()
    quiet = None if accelerator.is_main_process else Console(quiet=True)
    with Reporter(order.out, order.family, console or quiet) as reporter:
        reporter.say(_told(split, pupil, accelerator.num_processes))
        prompts = [chat.prompt for chat in split.held_out]
        examiner = Examiner(teacher, prompts, course.validation) if prompts else None
        run = ChatRun(
            accelerator, course, teacher, pupil, split.taught, examiner, order.out, reporter, stop_after_updates
        )
        run.finish()
    return run


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory}: has no tokenizer that transformers loads ({error})") from error
    need_chat_template(tokenizer, directory)
    return tokenizer


def _split(chats: Sequence[Chat], tokenizer: PreTrainedTokenizerBase, settings: DataSettings) -> Split:
    """Held-out chats are drawn from the seed; at most a tenth."""
    found = [tokenize(tokenizer, chat, settings.max_length) for chat in chats]
    kept = [chat for chat in found if chat is not None]
    if not kept:
        raise UsageError(
            f"data: no reply among the first {settings.max_length} tokens of any of {len(chats)} chats: "
            "raise data.max_length"
        )
    count = min(settings.held_out, len(kept) // 10)
    chosen = set(random.Random(f"held out/{settings.seed}").sample(range(len(kept)), count))
    taught = [chat for i, chat in enumerate(kept) if i not in chosen]
    return Split(taught, [kept[i] for i in sorted(chosen)], len(found) - len(kept))


def _described(
    order: ChatOrder, course: Course, directory: Path, begin_with: DrafterFiles | None
) -> dict[str, Any]:  # Any: JSON values
    """All that the result depends on; how work is laid out and looked at may change on the way."""
    return {
        "family": course.family.name,
        "drafter": asdict(course.drafter),
        "schedule": asdict(course.schedule),
        "length": asdict(course.length),
        "data": asdict(course.data),
        "file": hashlib.sha256(order.data.read_bytes()).hexdigest(),
        "target": target_fingerprint(directory),
        **({} if begin_with is None else {"start": _fingerprint(begin_with)}),
    }


def _fingerprint(files: DrafterFiles) -> str:
    return tensors_fingerprint({name: files.checkpoint.read(name) for name in files.names})


def _told(split: Split, pupil: torch.nn.Module, processes: int) -> str:
    learnt = sum(parameter.numel() for parameter in pupil.parameters() if parameter.requires_grad)
    tokens = sum(chat.num_taught for chat in split.taught)
    dropped = f", {split.num_dropped} left out (no reply within data.max_length)" if split.num_dropped else ""
    watched = "" if split.held_out else "; fewer than 10 chats, so none are held out and no tau is measured"
    return (
        f"{learnt:,} parameters learn from {tokens:,} reply tokens of {len(split.taught):,} chats, "
        f"{len(split.held_out)} held out{dropped}; processes: {processes}{watched}"
    )
