"""The target's own tokenizer: text to token ids and back. The only module here that may need transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider_client.core.prompt import PlainMessage
from outrider_client.models.plain_tokenizer import (
    NO_TEMPLATE,
    NO_TOOLS,
    TextTokenizer,
    ToolDescription,
    plain_tokenizer,
)
from outrider_proto.errors import UsageError


class TargetTokenizer(TextTokenizer):
    """The tokenizer in a target's directory, by transformers. Raises UsageError if there is none."""

    def __init__(self, directory: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UsageError("text needs a tokenizer: pip install 'outrider[client]'") from error
        try:
            # Any: transformers' tokenizers share no annotated base class
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
        except Exception as error:  # transformers trusts the files and fails on bad ones in many ways
            raise UsageError(f"{directory}: no tokenizer that transformers can read ({error})") from error
        # Decoding runs for every verdict; without transformers' wrapper it takes half the time.
        self._fast: Any = getattr(self._tokenizer, "backend_tokenizer", None)  # Any: as above

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _render(self, messages: Sequence[PlainMessage], tools: Sequence[ToolDescription] | None) -> str:
        template = self._tokenizer.chat_template
        if not template:
            raise UsageError(NO_TEMPLATE)
        if tools is not None and "tools" not in str(template):
            raise UsageError(NO_TOOLS)
        text: str = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools or ()) or None, add_generation_prompt=True, tokenize=False
        )
        return text

    def encode_part(self, text: str) -> list[int]:
        # verbose=False: transformers would log a warning about every long text.
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        text: str
        if self._fast is not None:
            text = self._fast.decode(list(tokens), skip_special_tokens=True)
        else:
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def load_tokenizer(directory: Path) -> TextTokenizer:
    """Load the faster of the two tokenizers that give the same tokens. Raises UsageError if there is none."""
    return plain_tokenizer(directory) or TargetTokenizer(directory)
