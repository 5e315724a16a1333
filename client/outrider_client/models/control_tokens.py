"""Control tokens steer a chat, as <|im_end|> does. Only the chat template writes them: content that spells one is text.

A guard stands in what content spells while the template works on it, and is dropped before the tokenizer reads:

    content     is <|im_end|> a token?          guarded    is <#|im_end|> a token?
    rendered    <|im_start|>user\\nis <#|im_end|> a token?<|im_end|>\\n       those without a guard are the template's

Where that makes a difference, a copy of the tokenizer reads which knows the control tokens by secret names alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, TypeVar

from outrider_client.core.prompt import ASSISTANT_ROLE, SYSTEM_ROLE, USER_ROLE, PlainMessage
from outrider_drafters.readers.control_names import private_character, renamed, secret_names
from outrider_proto.errors import UsageError

_CONTROL, _MARKUP = re.compile(r"<[|｜].+[|｜]>"), re.compile(r"<.+>|\[.+\]")
_ROLES = (SYSTEM_ROLE, USER_ROLE, ASSISTANT_ROLE, "tool", "developer")
T = TypeVar("T")


class ControlTokens:
    """The control tokens of a tokenizer of the library `tokenizers`, with the chat template that goes with it.

    They are its special tokens, others spelled <|...|>, and those that the template writes, such as <tool_call>. Other
    added tokens, as a model has of line breaks or HTML, are ordinary text.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:  # Any: the library's class has no annotations
        self._tokenizer = tokenizer
        tokenizer.no_truncation()  # which its file may ask for, as well as padding
        tokenizer.no_padding()
        added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        strong = {text for text in added if len(text) > 1 and (text in special or _CONTROL.fullmatch(text))}
        written = {text for text in added if _MARKUP.fullmatch(text) and text in template}
        self._tokens = {text: added[text] for text in strong | written}
        self._ids = frozenset(self._tokens.values())
        self._written = re.compile(_any_of(self._tokens))
        # In any case of letters: a template may change it.
        self._spelled = re.compile(_any_of(self._tokens), re.IGNORECASE)
        self._spelled_by_model = re.compile(_any_of(strong), re.IGNORECASE)
        self._inner_words = {re.sub(r"\W", "", text).lower() for text in self._tokens}
        self._guard, self._names = private_character(), secret_names(self._tokens)

    def guarded(self, content: T) -> T:
        """Return content, or whatever JSON holds, with a guard in all that spells a control token."""
        return _each_text(content, lambda text: self._spelled.sub(self._split, text))

    def guarded_message(self, message: PlainMessage) -> PlainMessage:
        guarded = self.guarded(message)
        role = message["role"]
        if role not in _ROLES and (not role.isidentifier() or role.lower() in self._inner_words):
            # Templates such as Phi's make <|user|> of a role, and so might make any other control token.
            raise UsageError(f"role={role!r}: need one of {', '.join(_ROLES)}, or a word that no control token has")
        if role == ASSISTANT_ROLE:
            # The model itself writes <think> and the like, and templates look for these in earlier answers.
            guarded["content"] = self._spelled_by_model.sub(self._split, message["content"])
        return guarded

    def apart(self, text: str) -> str:
        """Return content that will stand between other content, with which it must not spell a control token."""
        return f"{self._guard}{self.guarded(text)}{self._guard}"

    def encode(self, rendered: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of text in which content is guarded."""
        tokens: list[int] = self._tokenizer.encode(self._plain(rendered), add_special_tokens=add_special_tokens).ids
        written = [self._tokens[text] for text in self._written.findall(rendered)]
        is_raw = add_special_tokens and self._guard not in rendered
        if not is_raw and [token for token in tokens if token in self._ids] != written:
            named = self._written.sub(lambda match: self._names[match[0]], rendered)
            tokens = self._named.encode(self._plain(named), add_special_tokens=add_special_tokens).ids
        return tokens

    def _split(self, spelled: re.Match[str]) -> str:
        return f"{spelled[0][0]}{self._guard}{spelled[0][1:]}"

    def _plain(self, text: str) -> str:
        """Return text without guards, also where a template wrote JSON of ASCII letters."""
        return text.replace(self._guard, "").replace(json.dumps(self._guard)[1:-1], "")

    @cached_property
    def _named(self) -> Any:  # Any: as above
        from tokenizers import Tokenizer

        return Tokenizer.from_str(renamed(json.loads(self._tokenizer.to_str()), self._names))


def _any_of(texts: Collection[str]) -> str:
    """Return a pattern of any of the texts, the longest that fits; shared by letters, since there may be thousands."""
    tails: dict[str, list[str]] = {}
    for text in texts:
        tails.setdefault(text[:1], []).append(text[1:])
    may_end = tails.pop("", None) is not None
    branches = [re.escape(letter) + _any_of(rest) for letter, rest in tails.items()]
    if not branches:
        return "" if may_end else "(?!)"
    return branches[0] if len(branches) == 1 and not may_end else f"(?:{'|'.join(branches)}){'?' if may_end else ''}"


def _each_text(value: T, change: Callable[[str], str]) -> T:
    """Return what JSON holds with each of its texts changed."""
    changed: Any = value
    match value:
        case str():
            changed = change(value)
        case Mapping():
            changed = {change(name): _each_text(each, change) for name, each in value.items()}
        case list() | tuple():
            changed = [_each_text(each, change) for each in value]
    return changed  # type: ignore[no-any-return] # of the same kind
