"""The target's own tokenizer: text to token ids and back. The only module here that needs transformers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from outrider_client.core.prompt import CHAT, ChatForm, PlainMessage
from outrider_client.models.control_tokens import ControlTokens
from outrider_client.text.detokenizer import TokenFragments, token_fragments
from outrider_drafters.readers import chat_template
from outrider_proto.errors import UsageError

_MAX_GROWTH = 256  # times as long may a text get before it is split, or after its tokens are put together
_MAX_TOKEN_CHARS = 1024
# What a pattern that takes too long on a text takes too long on, most likely.
_SAMPLES = (
    *("a", "A", "1", " ", "\n", ".", "'", "_", "\u00e9", "\u4e2d", "a ", "a1", "a.", "aA", "a\n", "<a>", "it's "),
    "The quick brown fox, at 9:30, jumps over 2 lazy dogs' \u2014 na\u00efve caf\u00e9s!\n\ndef f(x): return x[0]\n",
)
_SAMPLE_CHARS, _SAMPLE_S = 10_000, 2.0


class TargetTokenizer:
    """The tokenizer in a target's directory, by transformers. Raises UsageError if there is none."""

    def __init__(self, directory: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UsageError("text needs a tokenizer: pip install 'outrider[client]'") from error
        chat_template.prepare()
        try:
            # Any: transformers' tokenizers share no annotated base class
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False)
            # Decoding runs for every verdict; without transformers' wrapper it takes half the time.
            self._fast: Any = self._tokenizer.backend_tokenizer  # Any: as above
            self.control = ControlTokens(self._fast, str(self._tokenizer.chat_template))
            _check_growth(self._fast)
        except Exception as error:  # transformers trusts the files and fails on bad ones in many ways
            raise UsageError(f"{directory}: no tokenizer that transformers can read ({error})") from error
        self._template = chat_template.ChatTemplate(self._tokenizer.special_tokens_map)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a raw prompt. Text that spells a control token is that token, unless guarded."""
        with _panics_refused():
            return self.control.encode(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of this text alone, without special tokens at its beginning or end."""
        with _panics_refused():
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
        chat = [self.control.guarded_message(message) for message in messages]
        tools = self.control.guarded(form.tools) or None
        ending = {
            "add_generation_prompt": form.begins_answer and not form.continues,
            "continue_final_message": form.continues,
        }
        try:
            template = str(self._tokenizer.get_chat_template(tools=tools))
            return self._template.render(template, chat, tools, {**self.control.guarded(form.settings), **ending})
        except (UsageError, ValueError) as error:  # ValueError: several templates, none of them the default
            if form.continues:  # transformers' message would repeat the text
                raise UsageError("the chat template does not take these messages, the last of them to go on") from None
            raise UsageError(f"the chat template does not take these messages: {error}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        with _panics_refused():
            text: str = self._fast.decode(list(tokens), skip_special_tokens=True)
        return text

    @property
    def fragments(self) -> TokenFragments:
        """Bytes of the tokens that are pieces of characters. Reads all tokens: not for the event loop."""
        return token_fragments(self._fast)

    def try_out(self) -> None:
        """Read and write texts of all kinds, where that can be ended from outside. Raises UsageError for a bad one."""
        if (longest := max(map(len, self._fast.get_vocab()), default=0)) > _MAX_TOKEN_CHARS:
            raise UsageError(f"tokenizer.json has a token of {longest:,} characters: more than {_MAX_TOKEN_CHARS:,}")
        for sample in _SAMPLES:
            begun = time.process_time()
            self.decode(self.encode_part(sample * (_SAMPLE_CHARS // len(sample))))
            if (seconds := time.process_time() - begun) > _SAMPLE_S:
                raise UsageError(f"tokenizer.json takes {seconds:.1f} s for a text of {_SAMPLE_CHARS:,} characters")


@contextmanager
def _panics_refused() -> Iterator[None]:
    """Turn a panic of the library `tokenizers`, which is no Exception, into UsageError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # Its message may hold the text.
        raise UsageError("tokenizer.json does not split this text: a pattern in it takes too many steps") from None


def _check_growth(tokenizer: Any) -> None:  # Any: the library's class has no annotations
    """Raise UsageError where a text may get far longer than it is."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(tokenizer, name)
        growth = 1 if part is None else prod(_growths(json.loads(part.__getstate__())))
        if growth > _MAX_GROWTH:
            raise UsageError(f"its {name} makes a text {growth:,} times as long: more than {_MAX_GROWTH}")


def _growths(part: Any) -> Iterator[int]:  # Any: whatever JSON holds
    match part:
        case {"type": "Replace", "content": str(content), "pattern": pattern}:
            # A regular expression may match between all letters.
            yield max(len(content) + (not pattern.get("String")), 1)
        case {"type": "Prepend", "prepend": str(prepended)}:
            yield max(len(prepended), 1)
        case dict():
            yield from (growth for each in part.values() for growth in _growths(each))
        case list():
            yield from (growth for each in part for growth in _growths(each))
