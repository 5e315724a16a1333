"""A served target answers prompts, many at once in the engine's own passes, and writes its features along.

Texts go to the files in the order of their prompts, whole or not at all: what a killed run has written is the beginning
of what it would have written, and another run goes on behind it. Of int8, whose rows have the same bits in every pass,
the files are then the same byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_client.core.prompt import PlainMessage
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_client.text.stop_strings import StopStrings
from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap
from outrider_drafters.families.eagle3.layout import default_layers
from outrider_drafters.families.moa.network import pack_kv
from outrider_lab.corpus.functions import FunctionPrompt, read_prompts
from outrider_lab.training.options import AnswerOptions
from outrider_models.core.embedded import target_source
from outrider_models.distillation.distill import before_loop, loops
from outrider_models.training.data.served_answers import (
    ANSWERS,
    KV,
    LAYOUT,
    SUFFIX,
    AnswersLayout,
    ServedAnswer,
    encode_rows,
    read_answers,
    stored_width,
)
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.files import write_atomically
from outrider_proto.frames import Finish, Sampling, TapInfo
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import resolve_target
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence as SlotSequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory

# Where a completion of HumanEval ends: what follows is not of the function's body.
_STOPS = StopStrings(
    ("\ndef ", "\nclass ", "\nif ", "\nprint(", "\n#", "\n```", "\nimport ", "\nfrom ", "\n@", "\nassert ")
)
_LOOKED_AT_EVERY = 16  # tokens, for loops
_BEGUN_A_PASS = 4  # prompts: a pass takes as long as it has rows
_AHEAD = 4  # batches of texts that are done before their turn
_LEAST_TOKENS = 4  # of an answer that teaches
_Fields = dict[str, NDArray[np.int8]]


class RecordingTap(StatelessTap):
    """All that a drafter of any family reads: K/V of all layers, and the hidden states of EAGLE, TLI 1 and EAGLE-3."""

    needs_kv = True

    def __init__(self, target: Target) -> None:
        layers, row = len(target.kv.rows), target.kv.rows[0]
        if len(target.kv.stacks) > 1 or target.kv.readers:
            raise UsageError("target: its layers differ, and their K/V are no field of one width")
        self.hidden_layers = tuple(dict.fromkeys((LAST, layers - 1, *default_layers(layers))))
        hidden = {f"hidden{layer}": target.hidden_size for layer in self.hidden_layers}
        self.fields = {KV: layers * row.kv_heads * (row.key_dim + row.value_dim), **hidden}
        width = sum(self.fields.values())
        self.info = TapInfo(fingerprint=f"recording:{width}", family="recording", width=width)

    def rows(self, acts: Activations) -> Tensor:
        hidden = (acts.hidden[layer].float() for layer in self.hidden_layers)
        return torch.cat((pack_kv(*acts.of_all_layers).flatten(-2).float(), *hidden), dim=-1)

    def encoded(self, rows: NDArray[np.float32]) -> _Fields:
        """Return the rows of each field as they are stored."""
        parts = np.split(rows, list(accumulate(self.fields.values()))[:-1], axis=1)
        return {name: encode_rows(torch.from_numpy(part)) for name, part in zip(self.fields, parts, strict=True)}


class AnswerFiles:
    """A directory of answers in writing. What of another run is not whole is cut off. Raises UsageError."""

    def __init__(self, directory: Path, layout: AnswersLayout) -> None:
        self._directory, self.texts, self.tokens = directory, 0, 0
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / LAYOUT).exists():
            write_atomically(directory / LAYOUT, json.dumps(asdict(layout), indent=2) + "\n")
        found, answers, lines = read_answers(directory)
        if found != layout:
            raise UsageError(f"{directory}: holds answers of another target, number format or file of prompts")
        count = sum(answer.num_rows for answer in answers)
        sizes = {f"{name}{SUFFIX}": count * stored_width(width) for name, width in layout.fields.items()}
        for name, size in {**sizes, ANSWERS: len(lines)}.items():
            with (directory / name).open("ab") as file:
                if file.tell() < size:
                    raise UsageError(f"{directory / name}: lacks rows of {ANSWERS}; begin again elsewhere")
                file.truncate(size)
        for answer in answers:
            self._count(answer)

    def append(self, answer: ServedAnswer, fields: _Fields) -> None:
        """Append a text. Its line comes last: what has none does not count."""
        for name, rows in fields.items():
            self._write(f"{name}{SUFFIX}", rows.tobytes())
        self._write(ANSWERS, json.dumps(asdict(answer)).encode() + b"\n")
        self._count(answer)

    def _write(self, name: str, data: bytes) -> None:
        try:
            with (self._directory / name).open("ab") as file:
                file.write(data)
        except OSError as error:
            raise OutriderError(f"{self._directory}: cannot be written ({error.strerror}): free some space") from None

    def _count(self, answer: ServedAnswer) -> None:
        self.texts += 1
        self.tokens += max(0, len(answer.ids) - answer.prompt)


@dataclass(slots=True, eq=False)
class _Text:
    number: int
    prompt: FunctionPrompt
    ids: tuple[int, ...]
    sequence: SlotSequence
    chain: tuple[int, ...]
    answer: list[int] = field(default_factory=list)


class Answering:
    """A run over prompts. Each thread runs passes of its own: two of one thread take less time than two of two."""

    def __init__(self, target: Target, tap: RecordingTap, tokenizer: TargetTokenizer, options: AnswerOptions) -> None:
        self._engine, self._num_threads = Engine(target), torch.get_num_threads()
        self._memories = [KVMemory(target.kv, sharing="none") for _ in range(self._num_threads)]
        self._tap, self._tokenizer, self._options, self._sampler = tap, tokenizer, options, Sampler(Sampling())

    def run(self, prompts: Sequence[FunctionPrompt], files: AnswerFiles, report: Callable[[AnswerFiles], None]) -> None:
        """Answer from the first prompt without an answer on, until there are enough tokens; `report` after each."""
        wanted, batch = self._options.tokens, self._options.batch
        coming = islice(enumerate(prompts), files.texts, None)
        active: list[_Text] = []
        done: dict[int, tuple[ServedAnswer, _Fields]] = {}
        with ThreadPoolExecutor(self._num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while files.tokens < wanted:
                if len(done) < _AHEAD * batch:
                    active += [self._begun(*one) for one in islice(coming, min(_BEGUN_A_PASS, batch - len(active)))]
                if not active:
                    return
                groups = ([text for text in active if text.sequence.memory is memory] for memory in self._memories)
                list(pool.map(self._step, filter(None, groups)))
                for text in [text for text in active if self._is_over(text)]:
                    active.remove(text)
                    done[text.number] = self._finished(text)
                while files.texts in done and files.tokens < wanted:
                    files.append(*done.pop(files.texts))
                    report(files)

    def _begun(self, number: int, prompt: FunctionPrompt) -> _Text:
        encode = self._tokenizer.encode if prompt.kind == "completion" else self._encode_chat
        memory = self._memories[number % self._num_threads]
        ids, sequence = tuple(encode(prompt.prompt)), SlotSequence(memory, self._tap)
        sequence.slot.reserve(len(ids) + self._options.max_new_tokens)
        return _Text(number, prompt, ids, sequence, ids)

    def _encode_chat(self, text: str) -> list[int]:
        return self._tokenizer.encode_chat([PlainMessage(role="user", content=text)])

    def _step(self, active: Sequence[_Text]) -> None:
        """Write a token of each text."""
        results = self._engine.verify([StepInput(text.sequence, text.chain, sampler=self._sampler) for text in active])
        if failures := [failure for failure in self._engine.commit_all(results) if failure is not None]:
            raise failures[0]
        self._engine.tap([text.sequence for text in active])
        for text, result in zip(active, results, strict=True):
            accepted = result.accepted
            if accepted is None or accepted.bonus is None or accepted.finish is Finish.CONTEXT_FULL:
                raise OutriderError("the target chose no token: its logits are not finite, or its context is full")
            text.chain = (accepted.bonus,)
            text.answer += text.chain

    def _is_over(self, text: _Text) -> bool:
        answer = text.answer
        if len(answer) >= self._options.max_new_tokens or answer[-1] in self._engine.target.eos_token_ids:
            return True
        return self._stop(text, answer) is not None or (len(answer) % _LOOKED_AT_EVERY == 0 and loops(answer))

    def _finished(self, text: _Text) -> tuple[ServedAnswer, _Fields]:
        """Return what is to be written of a text: up to a loop, and of a completion up to what stops it."""
        answer = before_loop(text.answer)
        if (stop := self._stop(text, answer)) is not None:
            while answer and len(self._tokenizer.decode(answer[:-1])) >= stop:  # a token may end the body and a line
                answer = answer[:-1]
        ids, prompt = (*text.ids, *answer) if len(answer) >= _LEAST_TOKENS else (), text.prompt
        about = ServedAnswer(prompt.kind, prompt.package, prompt.license, prompt.held_out, len(text.ids), ids)
        fields = self._tap.encoded(text.sequence.slot.features(0, about.num_rows)) if ids else {}
        text.sequence.release()
        return about, fields

    def _stop(self, text: _Text, answer: Sequence[int]) -> int | None:
        """Return where a completion's text goes beyond the function."""
        if text.prompt.kind != "completion":
            return None
        found = _STOPS.find(self._tokenizer.decode(answer))
        return None if found is None else found.start


def answer_prompts(
    file: Path, out: Path, options: AnswerOptions, report: Callable[[AnswerFiles], None] = lambda files: None
) -> AnswerFiles:
    """Let a target answer the prompts of a file until there are enough tokens. Raises UsageError."""
    name, prompts = str(target_source(options.target)), read_prompts(file)
    directory, _ = resolve_target(name, options.dtype, torch.device("cpu"))
    target = Target.load(name, options.dtype)
    tap, digest = RecordingTap(target), hashlib.sha256(file.read_bytes()).hexdigest()
    files = AnswerFiles(out, AnswersLayout(target.fingerprint, options.dtype, digest, tap.fields))
    report(files)
    Answering(target, tap, TargetTokenizer(directory), options).run(prompts, files, report)
    return files
