"""Text to token ids and back, with the target's own tokenizer. The one file here that needs transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from outrider_proto.errors import UsageError


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class TextCodec(Protocol):
    """What the client asks of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The chat template over the messages, up to where the answer begins."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class TargetTokenizer:
    """The tokenizer in a target's directory. Raises UsageError when there is none."""

    def __init__(self, directory: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UsageError("text needs a tokenizer: pip install 'outrider[client]'") from error
        try:
            # Any: transformers' tokenizers share no annotated base class
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{directory}: no tokenizer that transformers can read ({error})") from error
        # Decoding runs for every verdict: without the wrapper it takes half the time.
        self._fast: Any = getattr(self._tokenizer, "backend_tokenizer", None)  # Any: as above

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Raises UsageError without a chat template, or for messages that it does not take."""
        from jinja2.exceptions import TemplateError

        if not self._tokenizer.chat_template:
            raise UsageError("this target has no chat template: give the prompt raw (--raw)")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise UsageError(f"the chat template does not take these messages: {error}") from error
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        text: str
        if self._fast is not None:
            text = self._fast.decode(list(tokens), skip_special_tokens=True)
        else:
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
