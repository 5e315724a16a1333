"""Chats as tokens, by the target's own template and tokenizer, and the mask of reply tokens.

Templates with {% generation %} mark replies themselves. For others the chat is rendered up to each reply and up to its
end; the text in between is the reply, from the generation prompt to the end of the turn. A reply that the template
renders differently once more turns follow (some cut thoughts out of the history) is not trained on.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from outrider_drafters.readers.chat_template import ChatTemplate
from outrider_models.training.data.chats import Chat, Message
from outrider_models.training.data.texts import ChatTokens
from outrider_proto.errors import UsageError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def tokenize(tokenizer: PreTrainedTokenizerBase, chat: Chat, max_length: int) -> ChatTokens | None:
    """Return the first `max_length` tokens, or None without a reply in them. Raises UsageError that names the line."""
    messages = list(chat.turns)
    try:
        ids, is_reply = (_by_mask if _GENERATION.search(tokenizer.get_chat_template()) else _by_prefix)(
            tokenizer, messages
        )
    except (ValueError, TypeError) as error:  # raised by templates for turns they do not know
        raise UsageError(f"{chat.source}: the target's chat template refuses it ({error})") from error
    # By the module's name: jinja2 comes with transformers and is no dependency of ours to import.
    except Exception as error:
        if type(error).__module__.split(".")[0] != "jinja2":
            raise
        raise UsageError(f"{chat.source}: the target's chat template refuses it ({error})") from error
    if chat.cut:
        is_reply = _without_end(tokenizer, ids, is_reply)
    cut = ChatTokens(np.array(ids[:max_length], np.int32), np.array(is_reply[:max_length], bool), chat.kind)
    return cut if cut.num_labels else None


def load_chat_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load a target's tokenizer. Raises UsageError if there is none, or its chat template is missing or hangs."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory}: has no tokenizer that transformers can load ({error})") from error
    need_chat_template(tokenizer, directory)
    # Once in a process that can be killed. The chats of a corpus are rendered here, in a tenth of the time.
    try:
        template = ChatTemplate(tokenizer.special_tokens_map)
        template.render(str(tokenizer.get_chat_template()), [{"role": "user", "content": "Hello"}])
    except UsageError as error:
        raise UsageError(f"{directory}: its chat template does not write a question: {error}") from error
    return tokenizer


def need_chat_template(tokenizer: PreTrainedTokenizerBase, target: object) -> None:
    """Raise UsageError for a tokenizer without a chat template or without token offsets."""
    if not tokenizer.chat_template:
        raise UsageError(f"{target}: its tokenizer has no chat template: use an instruction-tuned target, or add one")
    if not tokenizer.is_fast:
        raise UsageError(f"{target}: its tokenizer has no tokenizer.json, so replies cannot be found among its tokens")


def _by_mask(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> tuple[list[int], list[bool]]:
    written = cast(
        dict[str, Any],  # Any: ids, masks
        tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True),
    )
    return written["input_ids"], [bool(flag) for flag in written["assistant_masks"]]


def _by_prefix(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> tuple[list[int], list[bool]]:
    whole = rendered(tokenizer, messages)
    spans = [span for i, message in enumerate(messages)
             if message["role"] == "assistant" and (span := _span(tokenizer, messages, i, whole))]  # fmt: skip
    written = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    inside = [any(first <= begin < end for first, end in spans) for begin, _ in written["offset_mapping"]]
    return cast(list[int], written["input_ids"]), inside


def _span(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], i: int, whole: str
) -> tuple[int, int] | None:
    """Return first character and end of reply i in the whole text; None if the template renders it differently."""
    before, through = rendered(tokenizer, messages[:i]), rendered(tokenizer, messages[: i + 1])
    if not (whole.startswith(before) and whole.startswith(through)):
        return None
    # A generation prompt may hold more than the history shows (an open thought): the reply starts where they differ.
    opening = rendered(tokenizer, messages[:i], opening=True)
    shared = os.path.commonprefix([opening, whole])  # noqa: RUF071  # letter by letter is what is wanted
    return len(shared), len(through)


def _without_end(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], is_reply: Sequence[bool]) -> list[bool]:
    """Take the end that the template gives to the last reply out of what is trained: the target did not end there."""
    last = max((i for i, flag in enumerate(is_reply) if flag), default=-1)
    end = last
    while end >= 0 and is_reply[end] and ids[end] not in tokenizer.all_special_ids:
        end -= 1
    has_end = end >= 0 and is_reply[end]
    return [flag and not (has_end and i >= end) for i, flag in enumerate(is_reply)]


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], opening: bool = False) -> str:
    """Return the text of messages by the tokenizer's template; `opening`: up to where a reply begins."""
    return cast(str, tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opening))
