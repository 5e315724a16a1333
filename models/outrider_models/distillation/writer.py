"""A target that writes in many dialogs at once, by transformers' generate."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)

from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir
from outrider_drafters.processor import has_bf16
from outrider_models.training.data.chats import Message
from outrider_models.training.data.tokens import load_chat_tokenizer, rendered
from outrider_proto.errors import UsageError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ASKED_EVERY = 16  # tokens
_MARK = "\u2042outrider\u2042"  # in nobody's template; what stands before and after it frames a user's words


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """The target's chat template, opened at a user's or the assistant's turn; `ends`: tokens that end a user's."""

    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]) -> "TurnTemplate":
        """Read a tokenizer's template. Raises UsageError for one that does not show a user's words as they are."""
        after = _around(tokenizer, [])[1]
        closing = tokenizer(after, add_special_tokens=False)["input_ids"]
        # Where plain text follows (a newline, say), eos alone ends a turn: such text occurs within turns too.
        closes = closing[:1] if closing and closing[0] in tokenizer.all_special_ids else []
        return cls(tokenizer, frozenset((*eos_token_ids, *closes)))

    def users(self, before: Sequence[Message] = ()) -> str:
        """Return the text after which a user's words follow."""
        return _around(self.tokenizer, list(before))[0]

    def assistants(self, messages: Sequence[Message]) -> str:
        """Return the text after which the assistant's words follow."""
        return rendered(self.tokenizer, messages, opening=True)


@dataclass(frozen=True, slots=True)
class Opening:
    """A text to go on with, greedily or at temperature 1; `enough`, asked now and then, says that no more is wanted."""

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


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    dialog: Dialog
    opening: Opening
    tokens: list[int]  # the opening's


@dataclass(frozen=True, slots=True)
class TargetWriter:
    """The target, its chat template, and how many dialogs it writes in at once."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: TurnTemplate
    batch: int

    @classmethod
    def load(cls, name_or_path: str | Path, batch: int, dtype: str) -> Self:
        """Load a target, onto a GPU if there is one; auto: bfloat16 where the machine has it. Raises UsageError."""
        if dtype == "auto":
            dtype = "bfloat16" if has_bf16() else "float32"
        directory = resolve_dir(name_or_path)
        tokenizer = load_chat_tokenizer(directory)
        template = TurnTemplate.of(tokenizer, TargetWeights.load(directory).eos_token_ids)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any  # its class varies
        model, _ = load_causal_lm(directory, quantized=True, dtype=_DTYPES[dtype])
        # The model's own may penalize what it repeats.
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # transformers'
        return cls(model.to(device).eval(), tokenizer, template, batch)

    def write(self, dialogs: Iterable[Dialog]) -> None:
        """Continue what each dialog opens and send it what was written, until all have ended; the same each time."""
        rows: list[_Row] = []
        coming = iter(dialogs)
        while True:
            while len(rows) < self.batch and (dialog := next(coming, None)) is not None:
                rows += self._advanced(dialog, None)
            if not rows:
                return
            # Users' turns, which are short, come first: an answer may then be written beside as many others as can be.
            some = [row for row in rows if row.opening.seed is not None] or rows
            rows = [row for row in rows if row not in some]
            for row, done in zip(some, self._continued(some), strict=True):
                rows += self._advanced(row.dialog, done)

    def _advanced(self, dialog: Dialog, done: Continuation | None) -> list[_Row]:
        """Tell a dialog what was written; return a row for what it opens next, if it does."""
        limit = self.model.config.get_text_config().max_position_embeddings
        try:
            opening = next(dialog) if done is None else dialog.send(done)
            while True:
                tokens = self.tokenizer(opening.text, add_special_tokens=False)["input_ids"]
                if tokens and len(tokens) + opening.max_new_tokens <= limit:
                    return [_Row(dialog, opening, tokens)]
                opening = dialog.send(Continuation((), "", ended=False))
        except StopIteration:
            return []

    def _continued(self, rows: Sequence[_Row]) -> Iterator[Continuation]:
        """Write on in all rows at once."""
        openings, longest = [row.opening for row in rows], max(len(row.tokens) for row in rows)
        padded = torch.tensor([[0] * (longest - len(row.tokens)) + row.tokens for row in rows])
        mask = torch.tensor([[0] * (longest - len(row.tokens)) + [1] * len(row.tokens) for row in rows])
        limits, seeds = _Limits(openings, longest), [opening.seed for opening in openings if opening.seed is not None]
        generate: Any = self.model.generate  # Any: its types are transformers' own
        output = generate(
            input_ids=padded.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            max_new_tokens=max(opening.max_new_tokens for opening in openings),
            do_sample=False,
            eos_token_id=sorted(self.template.ends) or None,
            pad_token_id=0,
            stopping_criteria=[limits],
            logits_processor=[_Noise(seeds, self.model.device)] if seeds else [],
        )
        for tokens, limit in zip(output[:, longest:].tolist(), limits.lengths, strict=True):
            written = tokens[:limit]
            end = next((place for place, token in enumerate(written) if token in self.template.ends), None)
            yield Continuation(tuple(written[:end]), str(self.tokenizer.decode(written[:end])), end is not None)


def _around(tokenizer: PreTrainedTokenizerBase, before: list[Message]) -> tuple[str, str]:
    whole = rendered(tokenizer, [*before, {"role": "user", "content": _MARK}], opening=True)
    if whole.count(_MARK) != 1:
        raise UsageError("the target's chat template does not show a user's words as they are: give --prompts FILE")
    first, _, last = whole.partition(_MARK)
    return first, last


class _Limits(StoppingCriteria):
    """Stops each row where its opening wants no more; `lengths` [tokens written] is where that was, or would be."""

    def __init__(self, openings: Sequence[Opening], num_given: int) -> None:
        self._openings, self._num_given = openings, num_given
        self.lengths = [opening.max_new_tokens for opening in openings]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # Any: unused
        written = input_ids[:, self._num_given :]
        length = written.shape[1]
        for place, opening in enumerate(self._openings):
            asked = length < self.lengths[place] and not length % _ASKED_EVERY
            if asked and opening.enough(written[place].tolist()):
                self.lengths[place] = length
        return torch.tensor([length >= own for own in self.lengths], device=input_ids.device)


class _Noise(LogitsProcessor):
    """Gumbel noise, by which the likeliest token is one sampled at temperature 1; each row has a seed of its own."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        shape: Any = {"size": scores.shape[1:], "device": scores.device, "dtype": torch.float64}
        uniform = torch.stack([torch.rand(generator=generator, **shape) for generator in self._generators])
        return scores - (-uniform.log()).log()
