"""Chat templates: programs that come with a model's files, run by transformers in a process that can be killed."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from outrider_drafters.trials.trial import OutOfBounds, Trial
from outrider_proto.errors import UsageError

MAX_CHARS = 2**18  # of a template; the longest in use have some 50,000
_MOST_TIMES = 8  # as long as what goes in may what comes out be, beside MAX_CHARS
_SMALL_CHARS = 2**16  # of a chat that is too long for no good template
_REMEMBERED_S = 60.0
# One for all: it writes a chat in a millisecond, and takes a second to start.
_trial = Trial("template", "transformers.utils.chat_template_utils")
atexit.register(_trial.close)
_Messages = Sequence[Mapping[str, Any]]  # Any: whatever JSON holds


def prepare() -> None:
    """Have the process that runs templates start now, beside the work of this one."""
    _trial.start()


class ChatTemplate:
    """Writes chats as text, each in the child: a template that is quick on one chat may hang on another."""

    def __init__(self, special_tokens: Mapping[str, Any]) -> None:  # Any: one, or several
        self._special_tokens = special_tokens
        self._refusal, self._refused_at = "", 0.0

    def render(
        self,
        template: str,
        messages: _Messages,
        tools: _Messages | None = None,
        settings: Mapping[str, Any] | None = None,  # Any: as above
    ) -> str:
        """Return the text of a chat. Raises UsageError for a template that fails or is out of bounds."""
        if self._refusal and time.monotonic() - self._refused_at < _REMEMBERED_S:
            raise UsageError(self._refusal)
        if len(template) > MAX_CHARS:
            raise UsageError(f"it has {len(template):,} characters itself: more than {MAX_CHARS:,}")
        known = {**self._special_tokens, **(settings or {})}
        try:
            text: str = _trial.run(f"{__name__}:run", template, messages, tools, known)
        except OutOfBounds as error:
            refusal = f"it {error}; give the prompt raw, or get the model's files from somebody else"
            if len(json.dumps([messages, tools])) < _SMALL_CHARS:
                self._refusal, self._refused_at = refusal, time.monotonic()
            raise UsageError(refusal) from None
        return text


def run(template: str, messages: _Messages, tools: Any, settings: Mapping[str, Any]) -> str:  # Any: as above
    """Render in this process, as transformers' apply_chat_template does it. Raises UsageError."""
    from transformers.utils.chat_template_utils import render_jinja_template

    most = MAX_CHARS + _MOST_TIMES * len(json.dumps([messages, tools]))
    # As there: to templates a missing name means more than null.
    chat = [{name: value for name, value in message.items() if value is not None} for message in messages]
    try:
        rendered: Any = render_jinja_template([chat], tools, chat_template=template, **settings)
    except MemoryError:
        raise
    except Exception as error:  # a template is a program, and may fail like one
        raise UsageError(" ".join(str(error).split())[:500]) from error
    text = str(rendered[0][0])
    if len(text) > most:
        raise UsageError(f"it writes {len(text):,} characters, more than {most:,}")
    return text
