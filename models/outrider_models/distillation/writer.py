"""A target that writes in many dialogs at once: whoever has finished leaves its row to the next."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir
from outrider_drafters.processor import has_bf16
from outrider_models.distillation.row_cache import RowCache
from outrider_models.distillation.turns import TurnTemplate
from outrider_models.training.data.tokens import need_chat_template
from outrider_proto.packing import common_prefix_len

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ASKED_EVERY = 16  # tokens
_PROMPTS_AT_ONCE = 8  # a pass over one prompt alone costs nearly as much as over several
_MOST_FED_ON = 32  # tokens of a text that a row takes one by one instead of in a pass of its own


@dataclass(frozen=True, slots=True)
class Opening:
    """A text to be continued: greedily, or with a seed sampled at temperature 1.

    `enough`: tells by the tokens so far, asked now and then, that no more are wanted.
    """

    text: str
    max_new_tokens: int
    seed: int | None = None
    enough: Callable[[Sequence[int]], bool] = lambda tokens: False


@dataclass(frozen=True, slots=True)
class Continuation:
    """What was written after a text; `ended`: by an end token, which is not part of it."""

    tokens: tuple[int, ...]
    text: str
    ended: bool


Dialog = Generator[Opening, Continuation, None]


@dataclass(slots=True, eq=False)
class _Row:
    dialog: Dialog
    opening: Opening
    tokens: list[int]  # the opening's, then what is written
    num_given: int  # the opening's
    noise: torch.Generator | None
    num_cached: int = 0  # tokens whose keys and values are in the cache

    @property
    def written(self) -> list[int]:
        return self.tokens[self.num_given :]

    def takes_over(self, row: Self) -> bool:
        """Go on from the keys and values of the dialog's last text if this one is nearly all of it."""
        # The last token is always fed: what follows it is read from its output.
        shared = min(common_prefix_len(self.tokens[:-1], row.tokens), row.num_cached)
        if len(self.tokens) - shared > _MOST_FED_ON:
            return False
        self.num_cached = shared
        return True


@dataclass(frozen=True, slots=True)
class TargetWriter:
    """The target, its chat template, and how many dialogs it writes in at once."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: TurnTemplate
    batch: int

    @classmethod
    def load(cls, name_or_path: str | Path, batch: int, dtype: str) -> Self:
        """Load a target, onto a GPU if there is one; `dtype` auto: bfloat16 where the machine computes in it.

        Raises UsageError, also for a target without a chat template.
        """
        if dtype == "auto":
            dtype = "bfloat16" if has_bf16() else "float32"
        directory = resolve_dir(name_or_path)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
        tokenizer = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
        need_chat_template(tokenizer, name_or_path)
        template = TurnTemplate.of(tokenizer, TargetWeights.load(directory).eos_token_ids)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=_DTYPES[dtype])  # Any: its class varies
        return cls(model.to(device).eval(), tokenizer, template, batch)

    @torch.inference_mode()
    def write(self, dialogs: Iterable[Dialog]) -> None:
        """Continue what each dialog opens and send it what was written, until all have ended.

        The same dialogs, batch and machine give the same words. Raises UsageError for a target that is not made of
        attention layers alone.
        """
        cache = RowCache(self.model, self.batch)
        rows: list[_Row] = []
        waiting: deque[_Row] = deque()
        coming = iter(dialogs)
        while True:
            while len(rows) + len(waiting) < self.batch and (dialog := next(coming, None)) is not None:
                if (new := self._advanced(dialog, None)) is not None:
                    waiting.append(new)
            if not (rows or waiting):
                return
            if len(waiting) >= _PROMPTS_AT_ONCE or not rows:
                some = _of_like_length(waiting)
                self._pass(cache, some, len(rows), [row.tokens for row in some])
                rows += some
            else:
                self._pass(cache, rows, 0, [[row.tokens[row.num_cached]] for row in rows])
            for number in reversed(range(len(rows))):
                row = rows[number]
                if (done := self._continuation(row)) is None:
                    continue
                new = self._advanced(row.dialog, done)
                if new is not None and new.takes_over(row):
                    rows[number] = new
                    continue
                if new is not None:
                    waiting.append(new)
                # The last row takes its place, so that live rows stay together.
                last = rows.pop()
                if last is not row:
                    rows[number] = last
                    cache.move(len(rows), number, last.num_cached)

    def _advanced(self, dialog: Dialog, done: Continuation | None) -> _Row | None:
        """Tell a dialog what was written; return a row for what it opens next, if it does."""
        limit = self.model.config.get_text_config().max_position_embeddings
        try:
            opening = next(dialog) if done is None else dialog.send(done)
            while True:
                tokens = self.tokenizer(opening.text, add_special_tokens=False)["input_ids"]
                if tokens and len(tokens) + opening.max_new_tokens <= limit:
                    break
                opening = dialog.send(Continuation((), "", ended=False))
        except StopIteration:
            return None
        noise = None if opening.seed is None else torch.Generator(self.model.device).manual_seed(opening.seed)
        return _Row(dialog, opening, tokens, len(tokens), noise)

    def _pass(self, cache: RowCache, rows: Sequence[_Row], first: int, tokens: Sequence[list[int]]) -> None:
        """Run the target over the next tokens of rows from `first` on; append to rows that were given no more."""
        longest, device = max(map(len, tokens)), self.model.device
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in tokens], device=device)
        begins = torch.tensor([row.num_cached for row in rows], device=device)
        positions = begins[:, None] + torch.arange(longest, device=device)
        hidden = self.model.base_model(
            input_ids=padded,
            attention_mask=cache.prepare(first, positions, self.model.dtype),
            position_ids=positions,
            past_key_values=cache.layers,
            use_cache=True,
        ).last_hidden_state
        for row, new in zip(rows, tokens, strict=True):
            row.num_cached += len(new)
        ready = [number for number, row in enumerate(rows) if row.num_cached == len(row.tokens)]
        if not ready:
            return
        logits = self.model.get_output_embeddings()(  # type: ignore[no-untyped-call]  # transformers
            hidden[torch.tensor(ready, device=device), [len(tokens[number]) - 1 for number in ready]]
        )
        chosen = logits.argmax(-1)
        for place, number in enumerate(ready):
            if (noise := rows[number].noise) is not None:
                chosen[place] = torch.multinomial(logits[place].float().softmax(-1), 1, generator=noise)[0]
        for number, token in zip(ready, chosen.tolist(), strict=True):
            rows[number].tokens.append(token)

    def _continuation(self, row: _Row) -> Continuation | None:
        """Return what was written once it has ended or is long enough."""
        if not (written := row.written):
            return None
        ended, length = written[-1] in self.template.ends, len(written)
        enough = length == row.opening.max_new_tokens or (not length % _ASKED_EVERY and row.opening.enough(written))
        if not (ended or enough):
            return None
        kept = written[:-1] if ended else written
        return Continuation(tuple(kept), str(self.tokenizer.decode(kept)), ended)


def _of_like_length(waiting: deque[_Row]) -> list[_Row]:
    """Take out the row that waits longest, and others whose prompts need little padding beside its own."""
    length = len(waiting[0].tokens)
    some = [row for row in waiting if 2 * length <= 3 * len(row.tokens) and 2 * len(row.tokens) <= 3 * length]
    for row in some[:_PROMPTS_AT_ONCE]:
        waiting.remove(row)
    return some[:_PROMPTS_AT_ONCE]
