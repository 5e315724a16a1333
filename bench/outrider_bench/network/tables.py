"""Tables of scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.network.intervals import IDEAL_STREAM
from outrider_bench.network.link_endpoint import NO_LINK
from outrider_bench.network.messages import MessageSizes
from outrider_bench.network.metrics import Metric
from outrider_bench.network.report import Scenario
from outrider_bench.network.variants import STREAM, ModeVariant

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


def legend(scenario: Scenario) -> list[str]:
    """Explain the labels that differ from the variants' names."""
    return [
        f"{label}: {variant.name}"
        for variant in scenario.variants
        if (label := scenario.label(variant)) != variant.name
    ]


def speed_table(scenario: Scenario) -> ResultTable:
    """Build the table of speeds and their bounds, with the ideal stream below the stream."""
    rows = _metrics_rows(scenario, _SPEED)
    if (ideal := scenario.ideal_stream)["tokens_per_second"] is not None:
        speed = plus_minus(ideal["tokens_per_second"], scenario.interval(IDEAL_STREAM, "tokens_per_second"), 1)
        # Every stream is below it: what a server does between passes comes on top of T_v.
        place = next(n for n, variant in enumerate(scenario.variants, 1) if variant.name == STREAM)
        rows.insert(place, ["ideal stream, 1000 / T_v", speed, plus_minus(ideal["ratio_to_stream"], None, 2), "1.00"])
    caption = f"{scenario.extent}; ±: 95 % interval over {'runs and ' * (len(scenario.runs) > 1)}prompts"
    return table(title(scenario), ("way", *(name for name, _, _ in _SPEED)), rows, caption=caption)


def text_table(scenario: Scenario) -> ResultTable:
    """Build the table of speeds on easy and on hard text, a row each."""
    rows = [
        [f"{label}, {name}", *figures]
        for place in range(len(scenario.variants))
        for name, group in scenario.text_groups.items()
        for label, *figures in [_metrics_rows(group, _OF_TEXT)[place]]
    ]
    families = "; ".join(f"{name}: {', '.join(dict.fromkeys(g.families))}" for name, g in scenario.text_groups.items())
    return table("by text", ("way", *(name for name, _, _ in _OF_TEXT)), rows, caption=families)


def first_token_table(scenario: Scenario) -> ResultTable:
    """Build the table of times to the first and the 32nd token; ratios are taken prompt by prompt."""
    heading = "how answers begin: first token of a prompt new to the server (cold) and known (warm), 32nd token (cold)"
    return _metrics_table(heading, scenario, _BEGINNING)


def cost_table(scenario: Scenario) -> ResultTable:
    """Build the table of costs for the link and the server."""
    return _metrics_table(
        "bytes a token, packets a reply, tokens and calls an answer, server ms a token", scenario, _COST
    )


def split_table(scenario: Scenario) -> ResultTable:
    """Build the table of where a token's time went."""
    rows = [
        [scenario.label(variant), *_parts(scenario.medians_of(variant.name)["split_ms"], _PARTS)]
        for variant in scenario.variants
    ]
    return table(
        "ms of a token's time, by part (they may overlap)", ("way", *(part.replace("_", " ") for part in _PARTS)), rows
    )


def pauses_table(scenario: Scenario) -> ResultTable:
    """Build the table of the times between tokens and between arrivals."""
    rows = []
    for variant in scenario.variants:
        metrics = scenario.medians_of(variant.name)
        rows.append(
            [scenario.label(variant), *(part for key in _EVENNESS for part in _parts(metrics[key], _PERCENTILES))]
        )
    columns = ("way", *_PERCENTILES, *(f"pause {name}" for name in _PERCENTILES))
    return table("ms between tokens, and between arrivals", columns, rows)


def link_table(scenarios: Sequence[Scenario], note: str = "") -> ResultTable:
    """Build a table of speeds by link: a row per drafter, seed and variant, a column per link."""
    links = list(dict.fromkeys(scenario.setting.profile for scenario in scenarios))
    seeds = {scenario.setting.seed for scenario in scenarios}
    rows = []
    for drafter, seed in dict.fromkeys((one.setting.drafter, one.setting.seed) for one in scenarios):
        of_link = {
            one.setting.profile: one for one in scenarios if (one.setting.drafter, one.setting.seed) == (drafter, seed)
        }
        # Those of any link will do: they are the same on all of them except for staleness.
        last = of_link[links[-1]]
        for variant in last.variants:
            label = f"{drafter}, {last.label(variant)}" + (f", seed {seed}" if len(seeds) > 1 else "")
            speeds = [_cell(of_link[link], variant, "tokens_per_second", 1) for link in links]
            rows.append([label, *speeds, *(_cell(last, variant, key, digits) for _, key, digits in _OF_ANY_LINK)])
    headings = ["single device" if link == NO_LINK else link for link in links]
    heading = " ".join(["tokens a second by link", *([note] if note else [])])
    return table(heading, ("drafter, way", *headings, *(name for name, _, _ in _OF_ANY_LINK)), rows)


def title(scenario: Scenario) -> str:
    """Describe in one line what was measured."""
    setting, trip = scenario.setting, scenario.round_trip
    pace = "not paced" if setting.pace is None else f"PACED as {setting.pace}"
    link = "no link" if setting.profile == NO_LINK else f"{setting.profile} ({setting.engine})"
    round_trip = (
        f"R {trip['mean_ms']:.1f} ms (standard error {trip['standard_error_ms']:.1f}, {trip['pings']} pings; "
        f"the profile's: {trip['profile_ms']:.1f})"
    )
    return f"{setting.drafter} over {link}, seed {setting.seed}, {round_trip}, {pace}, trees: {setting.tree_text}"


def _metrics_table(heading: str, scenario: Scenario, columns: Sequence[tuple[str, str, int]]) -> ResultTable:
    return table(heading, ("way", *(name for name, _, _ in columns)), _metrics_rows(scenario, columns))


def _metrics_rows(scenario: Scenario, columns: Sequence[tuple[str, str, int]]) -> list[list[str]]:
    """Return a row per variant, with the interval of every figure that has one."""
    return [
        [scenario.label(variant), *(_cell(scenario, variant, key, digits) for _, key, digits in columns)]
        for variant in scenario.variants
    ]


def _cell(scenario: Scenario, variant: ModeVariant, key: str, digits: int) -> str:
    metric = scenario.medians_of(variant.name)[key]
    return plus_minus(metric, scenario.interval(variant.name, key), digits)


def _parts(metric: Metric, names: Sequence[str]) -> list[str]:
    given = metric if isinstance(metric, dict) else {}
    return [_number(given.get(name), 1) for name in names]


def _number(metric: Metric, digits: int) -> str:
    return f"{metric:.{digits}f}" if isinstance(metric, int | float) else "-"


def messages_table(sizes: Sequence[MessageSizes]) -> ResultTable:
    """Build the base paper's Table 7: bytes of messages."""
    rows = [
        [
            f"{one.drafter},\n  {one.codec}",
            f"{one.nodes:.1f}",
            f"{one.accepted:.2f}",
            f"{one.draft:.0f}",
            f"{one.verdict:.0f}",
            f"{one.features:.0f}",
            f"{one.paper_down:.0f}",
            f"{one.prompt_features / max(one.prompt_tokens, 1):.0f}",
            f"{one.bytes_down_per_token:.0f}",
        ]
        for one in sizes
    ]
    columns = ("M", "A", "draft", "verdict", "features", "3A+A*w", "prompt/tok", "down/tok")
    return table("bytes a message (the paper's Table 7; w: values a token)", ("drafter", *columns), rows)
