"""An answer as JSON lines: one object per event, and one for the whole answer at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import TextIO

from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import Cycle, Event, Finished

# The output is read by other programs, so its keys outlive renamed fields of a frame.
_VERDICT_KEYS = {"logprobs": "likelihoods"}


class JsonDisplay:
    """The JSON lines of one answer."""

    def __init__(self, out: TextIO) -> None:
        self.written = AnswerText()
        self._out = out
        self._last_seq: int | None = None  # of the request in the last cycle

    def show(self, event: Event) -> None:
        self.written.take(event)
        self._write(event_name(event), self._cycle(event) if isinstance(event, Cycle) else asdict(event))
        if isinstance(event, Finished):
            self._write_answer(event)

    def close(self) -> None:
        return

    def _cycle(self, cycle: Cycle) -> dict[str, object]:
        """The fields of a cycle; a request that has several verdicts shows its context, often the prompt, once."""
        request = asdict(cycle.request)
        if cycle.request.seq == self._last_seq:
            del request["context"]
        self._last_seq = cycle.request.seq
        verdict = {_VERDICT_KEYS.get(name, name): value for name, value in asdict(cycle.verdict).items()}
        return {"request": request, "verdict": verdict}

    def _write_answer(self, finished: Finished) -> None:
        logprobs = self.written.logprobs
        answer = {
            "text": self.written.text,
            "token_ids": self.written.token_ids,
            "origins": self.written.origins,
            "logprobs": [one and asdict(one) for one in logprobs] if any(logprobs) else None,
            "reason": finished.reason,
            "statistics": asdict(finished.statistics),
        }
        self._write("answer", answer)

    def _write(self, name: str, fields: Mapping[str, object]) -> None:
        self._out.write(json.dumps({"event": name, **fields}, default=_plain) + "\n")
        self._out.flush()


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{value!r} cannot be written as JSON")


def event_name(event: object) -> str:
    """The name of an event's type in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
