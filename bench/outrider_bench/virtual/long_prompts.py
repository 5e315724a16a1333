"""A tape whose answers follow long prompts: the text of each prompt again and again before it, as far as is wanted.
Drafts and answers stay those of the prompt as it was."""

from __future__ import annotations

from dataclasses import replace

from outrider_bench.virtual.tape import Recording, Tape
from outrider_proto.errors import UsageError


def lengthened(tape: Tape, least: int) -> Tape:
    """Prompts of `least` tokens, or as long as they were. Raises UsageError where the context is too short for that."""
    longest = max((recording.limit for recording in tape.recordings), default=0)
    if least + longest >= tape.vocabulary.max_context:
        most = tape.vocabulary.max_context - longest - 1
        raise UsageError(f"prompt_tokens={least}: the taped answers leave room for {most}")
    return replace(tape, recordings=tuple(_lengthened(recording, least) for recording in tape.recordings))


def _lengthened(recording: Recording, least: int) -> Recording:
    prompt = recording.prompt
    missing = max(least - len(prompt), 0)
    before = (prompt * (missing // len(prompt) + 1))[:missing]
    return replace(recording, prompt=before + prompt)
