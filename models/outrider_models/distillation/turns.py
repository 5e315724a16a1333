"""Where a turn of a chat begins and ends, by the target's own template."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from outrider_models.training.data.chats import Message
from outrider_models.training.data.tokens import rendered
from outrider_proto.errors import UsageError

_MARK = "\u2042outrider\u2042"  # in nobody's template; what stands before and after it frames a user's words


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """The target's chat template, opened at the user's turn or at the assistant's.

    `ends`: tokens that end a turn: the end-of-text tokens, and what the template writes after a user's words.
    """

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


def _around(tokenizer: PreTrainedTokenizerBase, before: list[Message]) -> tuple[str, str]:
    whole = rendered(tokenizer, [*before, {"role": "user", "content": _MARK}], opening=True)
    if whole.count(_MARK) != 1:
        raise UsageError("the target's chat template does not show a user's words as they are: give --prompts FILE")
    first, _, last = whole.partition(_MARK)
    return first, last
