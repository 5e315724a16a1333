"""The forms of a prompt, its segments, and how the private ones are replaced by text that a tokenizer may see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from outrider_proto.errors import UsageError

DEFAULT_KIND = "PRIVATE"
_KIND = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """A piece of a prompt's text, private or not. Raises UsageError.

    `kind` names a private piece for its placeholder: EMAIL gives [EMAIL_1]; None means PRIVATE. The repr never shows
    private text, so that no log and no traceback does.
    """

    text: str
    private: bool = False
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and not _KIND.fullmatch(self.kind):
            raise UsageError("kind: need capital letters, digits and _, as in EMAIL")

    def __repr__(self) -> str:
        shown = f"<{self.kind or DEFAULT_KIND}>" if self.private else repr(self.text)
        return f"Segment({shown})"


Content = str | Sequence[Segment]


def as_segments(content: Content) -> tuple[Segment, ...]:
    """Return a content's segments; plain text is one that is not private."""
    return (Segment(content),) if isinstance(content, str) else tuple(content)


def as_content(segments: Iterable[Segment]) -> str | tuple[Segment, ...]:
    """Return segments as content: plain text where none is private."""
    content = tuple(segments)
    return content if has_private(content) else "".join(segment.text for segment in content)


def has_private(content: Content) -> bool:
    return not isinstance(content, str) and any(segment.private for segment in content)


SYSTEM_ROLE, USER_ROLE, ASSISTANT_ROLE = "system", "user", "assistant"


class PlainMessage(TypedDict):
    """One turn of a chat as plain text."""

    role: str
    content: str
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]  # Any: whatever JSON holds, for templates that know calls
    tool_call_id: NotRequired[str]


class PromptMessage(TypedDict):
    """One message of a chat; its content may have private segments."""

    role: str
    content: Content
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]  # Any: as above
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ChatForm:
    """What a chat template gets beside the messages: settings of its own, what the prompt ends with, functions."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # Any: whatever JSON holds
    begins_answer: bool = True  # what stands in front of an answer
    continues: bool = False  # the last message, so that the answer goes on with it
    tools: Sequence[Mapping[str, Any]] | None = None  # Any: in OpenAI's form; also none, for messages with calls


CHAT = ChatForm()

# True: text goes to the model as it is, without a chat template. "as text": and spells no control tokens either.
Raw = bool | Literal["as text"]
# Of one kind each; said so, mypy would take no list of messages that is written out in a call.
Prompt = str | Sequence[PromptMessage | int | Segment]
PlainPrompt = str | list[PlainMessage] | list[int]
_FORMS = "give text, messages, segments or token ids"


def plain_prompt(
    prompt: Prompt | PlainPrompt, write: Callable[[Content], str], recall: Callable[[Content], str] | None = None
) -> PlainPrompt:
    """Return the prompt with contents replaced by `write`, earlier answers by `recall`. Raises UsageError."""
    check_form(prompt)
    if isinstance(prompt, str):
        return write(prompt)
    tokens = [item for item in prompt if isinstance(item, int)]
    segments = [item for item in prompt if isinstance(item, Segment)]
    messages = [item for item in prompt if not isinstance(item, int | Segment)]
    if sum(map(bool, (tokens, segments, messages))) > 1:
        raise UsageError("prompt mixes messages, segments and token ids: give one of them")
    if segments:
        return write(segments)
    if not all("role" in message and "content" in message for message in messages):
        raise UsageError("prompt has a message without role or content: give both")
    recall = recall or write
    return [_plain(message, recall if message["role"] == ASSISTANT_ROLE else write) for message in messages] or tokens


def _plain(message: PromptMessage | PlainMessage, write: Callable[[Content], str]) -> PlainMessage:
    plain = PlainMessage(role=message["role"], content=write(message["content"]))
    if "tool_calls" in message:
        plain["tool_calls"] = message["tool_calls"]
    if "tool_call_id" in message:
        plain["tool_call_id"] = message["tool_call_id"]
    return plain


def check_form(prompt: Prompt | PlainPrompt) -> None:
    """Raise UsageError for what is none of a prompt's forms."""
    # Types only: what a private prompt says must not show in an error.
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray):  # which would count as token ids
        raise UsageError(f"prompt is of type {type(prompt).__name__}: {_FORMS}")
    for item in () if isinstance(prompt, str) else prompt:
        if isinstance(item, int | Segment) and not isinstance(item, bool):
            continue
        if not isinstance(item, Mapping):
            raise UsageError(f"prompt has an item of type {type(item).__name__}: {_FORMS}")
        content = item.get("content", "")  # a message without one is refused where it is written
        if not isinstance(content, str) and not (
            isinstance(content, Sequence) and all(isinstance(part, Segment) for part in content)
        ):
            raise UsageError("prompt has a message whose content is neither text nor segments")


def segments_of(prompt: Prompt | PlainPrompt) -> Iterator[Segment]:
    """Yield all segments of a prompt in order; token ids have none."""
    check_form(prompt)
    if isinstance(prompt, str):
        yield Segment(prompt)
        return
    for item in prompt:
        if isinstance(item, Segment):
            yield item
        elif not isinstance(item, int):
            yield from as_segments(item.get("content", ""))


def turn_starts(messages: Sequence[PlainMessage]) -> list[int]:
    """Return where a chat may begin so that its oldest turns are left out: at its start, or at a user's message."""
    users = [index for index, message in enumerate(messages) if message["role"] == USER_ROLE]
    return [0, *users[1:]]


def since(messages: Sequence[PlainMessage], start: int) -> list[PlainMessage]:
    """Return the chat from `start` on, after all system messages before that."""
    return [*(message for message in messages[:start] if message["role"] == SYSTEM_ROLE), *messages[start:]]


def dropped_warning(num_dropped: int) -> str:
    return f"the conversation is longer than the context: its {num_dropped} oldest messages are left out"


def is_private(prompt: Prompt) -> bool:
    """Return whether any part of the prompt is private."""
    return any(segment.private for segment in segments_of(prompt))


def safe_text(content: Content) -> str:
    """Return the text of a content without private segments."""
    if any(segment.private for segment in as_segments(content)):
        # Cannot happen if our code is right, and must not go unnoticed if it is not: private text would be sent.
        raise AssertionError("private text on its way to the server")
    return "".join(segment.text for segment in as_segments(content))
