"""The demo's picture: streaming beside drafting for every question, and the answer with the outage."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D

from demonstration.recording import Answer, Recording

COLORS = {
    "accepted": "#2e8b57",
    "bonus": "#1f77b4",
    "unverified": "#f0a202",
    "verified": "#2e8b57",
    "rolled back": "#c0392b",
    "corrected": "#8e44ad",
}
LABELS = {
    "accepted": "drafted, accepted",
    "bonus": "the target's own",
    "unverified": "unverified: the drafter alone",
    "verified": "then verified",
    "rolled back": "or rolled back",
    "corrected": "and corrected",
}
STATES = {
    "online": "#7fc79a",
    "connecting": "#cfd8dc",
    "resuming": "#f6d186",
    "offline": "#e07a6a",
}
SHOWN_STATES = ("online", "offline", "resuming")
MARKERS = dict.fromkeys(COLORS, "o") | {"rolled back": "x"}
CUT = "#f8d7d3"
STREAMED = "#b0bec5"
INK = "#37474f"


def draw(recording: Recording, path: Path, title: str, footnote: str) -> None:
    """Write the picture to `path`."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "text.color": INK}):
        figure = Figure(figsize=(13, 9), dpi=130, layout="constrained")
        rows = figure.add_gridspec(3, 1, height_ratios=(0.5, 3, 3))
        _draw_legend(figure.add_subplot(rows[0]))
        _draw_questions(figure, rows[1], recording)
        if recording.outages:
            _draw_outage(figure.add_subplot(rows[2]), recording)
        figure.suptitle(title, fontsize=14, fontweight="bold")
        figure.supxlabel(footnote, fontsize=8, color="#78909c")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _draw_questions(figure: Figure, place: SubplotSpec, recording: Recording) -> None:
    """Draw a panel a question: the streamed answer as a line, the drafted one as points, both from the question on."""
    pairs = recording.pairs
    panels = place.subgridspec(1, len(pairs)).subplots(sharey=True, squeeze=False)[0]
    longest = max(answer.seconds for pair in pairs for answer in pair)
    for axes, (streamed, drafted) in zip(panels, pairs, strict=True):
        axes.step(*_growth(streamed), where="post", color=STREAMED, lw=2)
        _scatter_tokens(axes, drafted, size=9, origin_s=drafted.started_s)
        axes.set_xlim(0, 1.02 * longest)
        axes.set_title(drafted.subject, loc="left", fontsize=11)
        axes.set_xlabel("seconds")
        ratio = drafted.tokens_per_second / streamed.tokens_per_second
        tau = f", {drafted.statistics.mean_acceptance_length:.2f} tokens a verdict" if drafted.verdicts else ""
        figures = (
            f"stream {streamed.tokens_per_second:.1f} tokens/s\n"
            f"auto {drafted.tokens_per_second:.1f} tokens/s: {ratio:.2f} times{tau}"
        )
        axes.text(0.98, 0.02, figures, transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
    panels[0].set_ylabel("tokens of the answer")


def _growth(answer: Answer) -> tuple[list[float], list[int]]:
    """Return the moments at which an answer grew, since its question, and its length from then on."""
    grown = [(mark.at_s - answer.started_s, mark.position + mark.count) for mark in answer.marks]
    return [0.0, *(at_s for at_s, _ in grown)], [0, *(length for _, length in grown)]


def _draw_outage(axes: Axes, recording: Recording) -> None:
    answer = recording.cut_answer
    cut, restored = recording.outages[0]
    highest = max(mark.position + mark.count for mark in answer.marks)
    axes.set_xlim(answer.started_s - 0.1, answer.finished_s + 0.1)
    axes.set_ylim(-0.1 * highest, 1.5 * highest)
    axes.set_ylabel("tokens of the answer")
    axes.set_xlabel("seconds")
    axes.set_title(f"The answer with the outage ({answer.subject})", loc="left", fontsize=11)
    _shade_outages(axes, recording)
    _scatter_tokens(axes, answer, size=16)
    _strip_of_states(axes, answer, height=0.03)
    for moment in _moments(answer, cut, restored):
        axes.axvline(moment.at_s, color=INK, lw=0.8, ls=":")
        axes.annotate(
            moment.text, (moment.at_s, moment.height * highest), (4 if moment.side == "left" else -4, 0),
            textcoords="offset points", ha=moment.side, va="top", fontsize=9,
        )  # fmt: skip


class _Moment(NamedTuple):
    """A labeled moment; the text begins on `side` of the line at `at_s`."""

    at_s: float
    text: str
    side: Literal["left", "right"]
    height: float = 1.47


def _moments(answer: Answer, cut: float, restored: float) -> list[_Moment]:
    offline = [at_s for at_s, state in answer.states if state == "offline" and at_s >= cut]
    online = [at_s for at_s, state in answer.states if state == "online" and at_s >= restored]
    moments = [_Moment(cut, "link cut", "right"), _Moment(restored, "link restored", "right", height=1.27)]
    if offline:
        wrote = any(mark.kind == "unverified" for mark in answer.marks)
        then = "the drafter writes on alone" if wrote else "the client waits for the link"
        noticed = f"noticed after {(offline[0] - cut) * 1000:.0f} ms:\n{then}"
        moments.append(_Moment(offline[0], noticed, "left"))
    if online:
        caught_up = f"caught up {(online[0] - restored) * 1000:.0f} ms later"
        moments.append(_Moment(online[0], caught_up, "right", height=1.16))
    return moments


def _scatter_tokens(axes: Axes, answer: Answer, size: float, origin_s: float = 0.0) -> None:
    for mark in answer.marks:
        positions = range(mark.position, mark.position + mark.count)
        color = COLORS[mark.kind]
        axes.scatter(
            [mark.at_s - origin_s] * mark.count, positions, s=size, marker=MARKERS[mark.kind],
            color="none" if mark.kind == "verified" else color, edgecolors=color if mark.kind == "verified" else None,
            lw=0.9 if mark.kind in ("verified", "rolled back") else 0, zorder=3,
        )  # fmt: skip


def _strip_of_states(axes: Axes, answer: Answer, height: float) -> None:
    """The link as the client sees it, as a colored strip along the bottom."""
    known = [(answer.started_s, "online"), *answer.states]
    ends = [at_s for at_s, _ in known[1:]] + [answer.finished_s]
    for (start, state), end in zip(known, ends, strict=True):
        axes.axvspan(start, end, 0.01, 0.01 + height, color=STATES[state], lw=0, zorder=2)


def _shade_outages(axes: Axes, recording: Recording) -> None:
    for start, end in recording.outages:
        axes.axvspan(start, end, color=CUT, lw=0, zorder=0)


def _draw_legend(axes: Axes) -> None:
    axes.axis("off")
    tokens = [Line2D([], [], color=STREAMED, lw=2, label="streamed"), *(_dot(*each) for each in LABELS.items())]
    link = [_band(CUT, "link cut"), *(_band(STATES[state], f"client: {state}") for state in SHOWN_STATES)]
    kept = axes.legend(handles=tokens, loc="upper center", ncols=len(tokens), frameon=False, borderaxespad=0)
    axes.legend(handles=link, loc="lower center", ncols=len(link), frameon=False, borderaxespad=0)
    axes.add_artist(kept)


def _dot(kind: str, label: str) -> Line2D:
    style = MARKERS[kind]
    return Line2D(
        [], [], color=COLORS[kind], marker=style, ls="", ms=6, mfc="none" if kind == "verified" else None, label=label
    )


def _band(color: str, label: str) -> Line2D:
    return Line2D([], [], color=color, lw=8, label=label)
