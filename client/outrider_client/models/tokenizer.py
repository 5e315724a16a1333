"""The target's own tokenizer: text to token ids and back. The only module here that needs transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider_client.core.prompt import CHAT, ChatForm, PlainMessage
from outrider_client.models.control_tokens import ControlTokens
from outrider_proto.errors import UsageError


class TargetTokenizer:
    """The tokenizer in a target's directory, by transformers. Raises UsageError if there is none."""

    def __init__(self, directory: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UsageError("text needs a tokenizer: pip install 'outrider[client]'") from error
        try:
            # Any: transformers' tokenizers share no annotated base class
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
            # Decoding runs for every verdict; without transformers' wrapper it takes half the time.
            self._fast: Any = self._tokenizer.backend_tokenizer  # Any: as above
        except Exception as error:  # transformers trusts the files and fails on bad ones in many ways
            raise UsageError(f"{directory}: no tokenizer that transformers can read ({error})") from error
        self.control = ControlTokens(self._fast, str(self._tokenizer.chat_template))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a raw prompt. Text that spells a control token is that token, unless guarded."""
        return self.control.encode(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of this text alone, without special tokens at its beginning or end."""
        return self.control.encode(text)

    def encode_chat(self, messages: Sequence[PlainMessage], form: ChatForm = CHAT) -> list[int]:
        """Return the tokens of the chat template over the messages, up to where the answer begins.

        Raises UsageError without a chat template, or one that shows functions, and for messages it rejects.
        """
        return self.encode_part(self.render(messages, form))

    def render(self, messages: Sequence[PlainMessage], form: ChatForm = CHAT) -> str:
        """Return the chat template's text, with content guarded. Raises what `encode_chat` does."""
        if form.tools is not None and "tools" not in str(self._tokenizer.chat_template):
            raise UsageError("this target's chat template shows no tools")
        if not self._tokenizer.chat_template:
            raise UsageError(
                "this target has no chat template, as a base model: `outrider generate --raw` and /v1/completions "
                "continue a text; a chat needs an instruction-tuned model"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                [self.control.guarded_message(message) for message in messages],
                tools=self.control.guarded(form.tools) or None,
                add_generation_prompt=form.begins_answer and not form.continues,
                continue_final_message=form.continues,
                tokenize=False,
                **self.control.guarded(form.settings),
            )
        except Exception as error:  # a template is a program, and may fail like one
            if form.continues:  # transformers' message would repeat the text
                raise UsageError("the chat template does not take these messages, the last of them to go on") from None
            raise UsageError(f"the chat template does not take these messages: {error}") from error
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._fast.decode(list(tokens), skip_special_tokens=True)
        return text
