"""Tables of a report's cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.network.link_endpoint import NO_LINK
from outrider_bench.network.messages import MessageSizes
from outrider_bench.network.report import Figures, ReportedCase
from outrider_bench.network.variants import STREAM

_SPEED = (
    ("tok/s", "tokens_per_second", 1),
    ("/ stream", "ratio_to_stream", 2),
    ("/ ideal", "ratio_to_ideal_stream", 2),
    ("tau", "mean_acceptance_length", 2),
    ("eta", "eta", 2),
    ("T_v ms", "verify_ms", 1),
)
_OF_TEXT = _SPEED[:2] + _SPEED[3:5]
_BEGINNING = (
    ("TTFT cold ms", "ttft_ms", 0),
    ("/ stream", "ttft_ratio_to_stream", 2),
    ("warm ms", "ttft_warm_ms", 0),
    ("32nd ms", "to_32nd_ms", 0),
    ("/ stream's", "to_32nd_ratio_to_stream", 2),
)
_COST = (
    ("up B", "bytes_up_per_token", 0),
    ("down B", "bytes_down_per_token", 0),
    ("packets", "packets_per_reply", 1),
    ("tokens", "tokens", 0),
    ("calls", "target_calls", 1),
    ("hits", "hit_rate", 2),
    ("stale", "stale_tokens", 1),
    ("server ms", "server_busy_ms_per_token", 1),
)
_OF_ANY_LINK = (
    ("acceptance length", "mean_acceptance_length", 2),
    ("calls", "target_calls", 1),
    *_COST[:2],
)
_PARTS = ("draft", "wire", "queue", "server_draft", "verify", "wait", "tap")
_PERCENTILES = ("p50", "p95", "p99")
_EVENNESS = ("inter_token_ms", "pause_ms")


def legend(case: ReportedCase) -> list[str]:
    """Explain the labels that differ from the variants' names."""
    return [f"{label}: {way}" for way in case.ways if (label := case.label(way)) != way]


def speed_table(case: ReportedCase) -> ResultTable:
    """Build the table of speeds and their bounds, with the ideal stream below the stream."""
    rows = _rows(case, case.ways, _SPEED)
    if case.ideal_stream["tokens_per_second"] is not None:
        speed, ratio = (_cell(case.ideal_stream, key, digits) for _, key, digits in _SPEED[:2])
        # Every stream is below it: what a server does between passes comes on top of T_v.
        place = list(case.ways).index(STREAM) + 1
        rows.insert(place, ["ideal stream, 1000 / T_v", speed, ratio, "1.00"])
    caption = f"{case.extent}; ±: 95 % interval over {'runs and ' * (case.runs > 1)}prompts"
    return table(title(case), ("way", *(name for name, _, _ in _SPEED)), rows, caption=caption)


def text_table(case: ReportedCase) -> ResultTable:
    """Build the table of speeds on easy and on hard text, a row each."""
    groups = {name: _rows(case, group.ways, _OF_TEXT) for name, group in case.text.items()}
    rows = [
        [f"{label}, {name}", *figures]
        for place in range(len(case.ways))
        for name, of_group in groups.items()
        for label, *figures in [of_group[place]]
    ]
    families = "; ".join(f"{name}: {', '.join(group.families)}" for name, group in case.text.items())
    return table("by text", ("way", *(name for name, _, _ in _OF_TEXT)), rows, caption=families)


def first_token_table(case: ReportedCase) -> ResultTable:
    """Build the table of times to the first and the 32nd token; ratios are taken prompt by prompt."""
    heading = "how answers begin: first token of a prompt new to the server (cold) and known (warm), 32nd token (cold)"
    return _table(heading, case, _BEGINNING)


def cost_table(case: ReportedCase) -> ResultTable:
    """Build the table of costs for the link and the server."""
    return _table("bytes a token, packets a reply, tokens and calls an answer, server ms a token", case, _COST)


def split_table(case: ReportedCase) -> ResultTable:
    """Build the table of where a token's time went."""
    rows = [[case.label(way), *_parts(figures["split_ms"], _PARTS)] for way, figures in case.ways.items()]
    return table(
        "ms of a token's time, by part (they may overlap)", ("way", *(part.replace("_", " ") for part in _PARTS)), rows
    )


def pauses_table(case: ReportedCase) -> ResultTable:
    """Build the table of the times between tokens and between arrivals."""
    rows = [
        [case.label(way), *(part for key in _EVENNESS for part in _parts(figures[key], _PERCENTILES))]
        for way, figures in case.ways.items()
    ]
    columns = ("way", *_PERCENTILES, *(f"pause {name}" for name in _PERCENTILES))
    return table("ms between tokens, and between arrivals", columns, rows)


def link_table(cases: Sequence[ReportedCase], note: str = "") -> ResultTable:
    """Build a table of speeds by link: a row per drafter, seed and variant, a column per link."""
    links = list(dict.fromkeys(case.profile for case in cases))
    seeds = {case.seed for case in cases}
    rows = []
    for drafter, seed in dict.fromkeys((case.drafter, case.seed) for case in cases):
        of_link = {case.profile: case for case in cases if (case.drafter, case.seed) == (drafter, seed)}
        # Those of any link will do: they are the same on all of them except for staleness.
        last = of_link[links[-1]]
        for way, figures in last.ways.items():
            label = f"{drafter}, {last.label(way)}" + (f", seed {seed}" if len(seeds) > 1 else "")
            speeds = [_cell(of_link[link].ways[way], "tokens_per_second", 1) for link in links]
            rows.append([label, *speeds, *(_cell(figures, key, digits) for _, key, digits in _OF_ANY_LINK)])
    headings = ["single device" if link == NO_LINK else link for link in links]
    heading = " ".join(["tokens a second by link", *([note] if note else [])])
    return table(heading, ("drafter, way", *headings, *(name for name, _, _ in _OF_ANY_LINK)), rows)


def title(case: ReportedCase) -> str:
    """Describe in one line what was measured."""
    trip = case.round_trip
    pace = "not paced" if case.pace is None else f"PACED as {case.pace}"
    link = "no link" if case.profile == NO_LINK else f"{case.profile} ({case.engine})"
    round_trip = (
        f"R {trip['mean_ms']:.1f} ms (standard error {trip['standard_error_ms']:.1f}, {trip['pings']} pings; "
        f"the profile's: {trip['profile_ms']:.1f})"
    )
    return f"{case.drafter} over {link}, seed {case.seed}, {round_trip}, {pace}, trees: {case.tree_text}"


def _table(heading: str, case: ReportedCase, columns: Sequence[tuple[str, str, int]]) -> ResultTable:
    return table(heading, ("way", *(name for name, _, _ in columns)), _rows(case, case.ways, columns))


def _rows(case: ReportedCase, ways: Mapping[str, Figures], columns: Sequence[tuple[str, str, int]]) -> list[list[str]]:
    """Return a row per variant, with the interval of every figure that has one."""
    return [
        [case.label(way), *(_cell(figures, key, digits) for _, key, digits in columns)] for way, figures in ways.items()
    ]


def _cell(figures: Figures, key: str, digits: int) -> str:
    return plus_minus(figures[key], figures.get(f"{key}_ci95"), digits)


def _parts(figures: Figures, names: Sequence[str]) -> list[str]:
    return [plus_minus(figures.get(name), None, 1) for name in names]


def messages_table(sizes: Sequence[MessageSizes]) -> ResultTable:
    """Build the base paper's Table 7: bytes of messages."""
    rows = [
        [
            f"{one.drafter},\n  {one.codec}",
            f"{one.nodes:.1f}",
            f"{one.accepted:.2f}",
            *(f"{size:.0f}" for size in (one.draft, one.verdict, one.features, one.paper_down)),
            *(f"{size:.0f}" for size in (one.prompt_features / max(one.prompt_tokens, 1), one.bytes_down_per_token)),
        ]
        for one in sizes
    ]
    columns = ("M", "A", "draft", "verdict", "features", "3A+A*w", "prompt/tok", "down/tok")
    return table("bytes a message (the paper's Table 7; w: values a token)", ("drafter", *columns), rows)
