"""The demo on the terminal: answers colored by the origin of their tokens, and a table of statistics."""

from __future__ import annotations

import time

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demonstration.recording import Answer, Recording

STYLES = {
    "accepted": "green",
    "bonus": "cyan",
    "corrected": "bold magenta",
    "unverified": "yellow italic",
    "verified": "underline green",
    "rolled back": "strike red",
}
MEANINGS = {
    "accepted": "drafted and accepted",
    "bonus": "the target's own",
    "unverified": "unverified: the drafter alone",
    "verified": "then verified",
    "rolled back": "or rolled back",
    "corrected": "and corrected",
}
PROMPT_LINES = 4
REFRESH_S = 0.07  # drawing takes milliseconds, and the client needs them


def legend() -> Text:
    return Text("   ").join(Text(meaning, STYLES[kind]) for kind, meaning in MEANINGS.items())


class AnswerView:
    """Shows an answer while it is written; in a file or pipe, once it is finished."""

    def __init__(self, console: Console, answer: Answer) -> None:
        self._answer = answer
        self._link = ""
        self._drawn_at = 0.0
        console.print(
            Text.assemble(
                "\n", (f" {answer.subject}, {answer.mode} ", "bold reverse"), " ", (_short(answer.prompt), "dim")
            )
        )
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")

    def __enter__(self) -> AnswerView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._link = ""
        self._draw()
        self._live.stop()

    def show_link(self, text: str) -> None:
        self._link = text
        self._draw()

    def refresh(self) -> None:
        """Redraw, unless the last time was too recent."""
        if time.monotonic() - self._drawn_at >= REFRESH_S:
            self._draw()

    def _draw(self) -> None:
        text = Text.assemble(*((self._marked(kind, piece), STYLES[kind]) for kind, piece in self._answer.pieces()))
        below = [Text(f"[{self._link}]", "bold red")] if self._link else []
        self._live.update(Group(text, *below), refresh=True)
        self._drawn_at = time.monotonic()

    def _marked(self, kind: str, text: str) -> str:
        """Put rolled-back text in brackets where the output cannot strike it out."""
        return f"[-{text}-]" if kind == "rolled back" and not self._live.console.is_terminal else text


def table(recording: Recording) -> Table:
    """Build a table with a row of statistics for each answer."""
    shown = Table(title="The answers", caption=_CAPTION, caption_justify="left", box=box.SIMPLE, padding=0)
    shown.add_column("question")
    shown.add_column("mode")
    for name in ("own", "tokens", "tau", "tokens/s", "first", "up", "down", "offline"):
        shown.add_column(name, justify="right")
    for answer in recording.answers:
        shown.add_row(*_row(answer))
    return shown


_CAPTION = (
    "own: token for token what the target writes alone. tau: tokens per verdict on a draft, bonus included. "
    "tokens/s: from the question on. first: time to the first token. up, down: bytes per token."
)


def _row(answer: Answer) -> list[str]:
    s = answer.statistics
    tokens = max(s.new_tokens, 1)
    return [
        answer.subject,
        answer.mode,
        "yes" if answer.is_targets_own else "NO",
        str(s.new_tokens),
        f"{s.mean_acceptance_length:.2f}" if answer.verdicts else "",
        f"{answer.tokens_per_second:.1f}",
        f"{s.time_to_first_token_ms / 1000:.2f} s",
        f"{s.bytes_up / tokens:.0f}",
        f"{s.bytes_down / tokens:.0f}",
        f"{s.offline_ms / 1000:.1f} s" if s.outages else "",
    ]


def speed_summary(recording: Recording) -> str:
    """Compare the two modes, question by question."""
    each = ", ".join(
        f"{drafted.subject} {drafted.tokens_per_second / streamed.tokens_per_second:.2f}"
        for streamed, drafted in recording.pairs
    )
    return f"auto against stream: {recording.speed_up:.2f} times the speed (geometric mean of {each})."


def outage_summary(recording: Recording) -> str:
    """Summarize the outage and the answer that it interrupted."""
    if not recording.outages:
        return "The link was not cut: the answer ended earlier. Choose a smaller --cut-after."
    answer, (cut, restored) = recording.cut_answer, recording.outages[0]
    verified = sum(mark.count for mark in answer.marks if mark.kind == "verified")
    outcome = "the target's own all the same" if answer.is_targets_own else "NOT the target's own"
    if not verified + answer.statistics.rolled_back:
        waited = "no drafter here writes sense alone, so the client waited for the link"
        return f"Outage of {restored - cut:.1f} s in the {answer.subject} answer: {waited}; the answer is {outcome}."
    return (
        f"Outage of {restored - cut:.1f} s in the {answer.subject} answer: the drafter wrote "
        f"{verified + answer.statistics.rolled_back} tokens alone, the target kept {verified} of them; "
        f"the answer is {outcome}."
    )


def _short(prompt: str) -> str:
    lines = prompt.strip().splitlines()
    return "\n".join(lines[:PROMPT_LINES]) + (" ..." if len(lines) > PROMPT_LINES else "")
