"""The prompt of `outrider generate`: from the command line, standard input and files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_client.core.prompt import SYSTEM_ROLE, USER_ROLE, PromptMessage
from outrider_client.display.messages import print_message
from outrider_client.privacy.fences import parse_fences, parse_prompt, private_kinds
from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json, read_text

if TYPE_CHECKING:
    from outrider_client.models.local_models import Prompt

_GIVE_ONE = "give PROMPT or --prompt-ids, or pipe text to this command"


def read_prompt(
    text: str | None,
    prompt_ids: str | None = None,
    *,
    files: Sequence[Path] = (),
    private: Sequence[Path] = (),
    system: str | None = None,
    raw: bool = False,
    fences: bool = True,
    detect: bool = False,
) -> Prompt:
    """Return the prompt, and tell what of it is private. `system`: text of a system message. Raises UsageError."""
    if system is not None and (raw or prompt_ids is not None):
        raise UsageError("system: --raw and --prompt-ids do without the chat template, which system messages need")
    if prompt_ids is not None:
        if text is not None or files or private:
            raise UsageError("prompt-ids: give either text or --prompt-ids")
        try:
            return [int(token) for token in prompt_ids.split(",")]
        except ValueError:
            raise UsageError(f"prompt-ids={prompt_ids!r}: need token ids separated by commas") from None
    if text == "-" or (text is None and not files and not private):
        text = _standard_input(is_asked_for=text == "-")
    joined = "\n\n".join([*filter(None, [text]), *(_file_text(file, fences=fences) for file in files)])
    question = parse_prompt(joined, private, fences=fences, detect=detect)
    prompt: Prompt = question
    if system is not None:
        content = parse_prompt(system, fences=fences, detect=detect)
        prompt = [PromptMessage(role=SYSTEM_ROLE, content=content), PromptMessage(role=USER_ROLE, content=question)]
    kinds = private_kinds(prompt)
    if kinds or detect:
        print_message(f"private: {', '.join(kinds) or 'nothing'}")
    return prompt


def read_schema(file: Path) -> str:
    """Return the JSON schema in a file. Raises UsageError."""
    text = read_text(file, "json-schema")
    parse_json(text, f"json-schema={file}")
    return text


def _standard_input(*, is_asked_for: bool) -> str:
    """Return what is piped in; a terminal is read only if it was asked for, by `-`. Raises UsageError."""
    # None where it is closed, as some job schedulers start their jobs.
    if sys.stdin is None or (sys.stdin.isatty() and not is_asked_for):
        raise UsageError(f"no prompt: {_GIVE_ONE}")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        raise UsageError("standard input: not text in this system's encoding") from None  # the error quotes the text
    except OSError as error:  # `nohup` opens it for writing alone
        raise UsageError(f"standard input: cannot be read ({error.strerror}); {_GIVE_ONE}") from error
    if not text:
        raise UsageError(f"no prompt, and standard input is empty: {_GIVE_ONE}")
    return text


def _file_text(file: Path, *, fences: bool) -> str:
    """Return a file's text, `<<private: ...>>` in it still marked. Raises UsageError."""
    text = read_text(file, "file")
    try:
        if fences:
            parse_fences(text)  # here, so that a mistake is told with its line in this file
    except UsageError as error:
        raise UsageError(f"file={file}: {error} (--no-fences reads it as it is)") from None
    return text
