"""Mixture of Attentions (Zimmer et al., arXiv 2410.03804), on one device: Tables 2, 5, 9 and 10, and A.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from outrider_bench.core.plots import COLORS, saved_figure
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.studies.drafters.comparison_report import PLAIN
from outrider_lab.paper.claims import Claim, Estimate, Prompts, Report, of_family, speed_ratio, tau_ratio
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.measurement import Measurement, Reports
from outrider_lab.paper.setup import OWN_TREES, PAPERS_CHAIN, PAPERS_TREE, PaperSetup

PAPER = "Mixture of Attentions"
PAPERS_TREES, CHAINS, CODE = "drafters-papers-tree", "drafters-chain", "drafters-code"
SECOND = "drafters-second-target"
FAMILIES = ("MT-Bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM", "Natural Questions", "mean")
TABLE_2_ROLES = ("moa_tli3", "moa_tli1", "moa", "eagle2", "independent", "eagle3", "hydra", "medusa", "dspark")
ABLATION = ("moa_tli3", "moa_tli1", "moa", "moa_nolsa", "eagle2", "eagle2_wide", "eagle2_deep")
# Role: speed-up and tau of every data set, the mean last.
TABLE_2 = {
    "moa_tli3": ("1.74 4.65", "2.02 5.41", "1.74 4.65", "1.81 4.80", "1.89 5.04", "1.59 4.23", "1.79 4.79"),
    "moa_tli1": ("1.83 4.19", "2.29 5.30", "1.83 4.19", "2.02 4.65", "2.04 4.74", "1.71 3.94", "1.95 4.50"),
    "moa": ("1.80 3.86", "2.28 4.98", "1.80 3.86", "2.03 4.36", "2.10 4.55", "1.72 3.73", "1.95 4.22"),
    "eagle2": ("1.77 3.55", "1.95 3.92", "1.69 3.36", "1.89 3.77", "1.84 3.69", "1.66 3.32", "1.78 3.60"),
    "independent": ("1.23 3.50", "1.50 4.36", "0.95 2.70", "1.33 3.79", "1.28 3.59", "1.10 3.13", "1.23 3.51"),
}
TABLE_5 = {  # tokens per second, tau
    "moa_tli3": "39 2.54",
    "moa_tli1": "39 2.25",
    "moa": "40 2.14",
    "moa_nolsa": "38 1.93",
    "eagle2": "30 1.45",
    "eagle2_wide": "29 1.28",
    "eagle2_deep": "27 1.01",
}
TABLE_9 = {
    "moa": ("1.71 3.72", "2.18 4.76", "1.60 3.46", "1.88 4.00", "1.78 3.89", "1.68 3.59", "1.80 3.90"),
    "eagle2": ("1.59 3.20", "1.84 3.70", "1.53 3.06", "1.81 3.54", "1.60 3.23", "1.62 3.17", "1.66 3.31"),
    "independent": ("1.59 3.37", "2.04 4.38", "1.44 3.03", "1.70 3.52", "1.54 3.27", "1.50 3.12", "1.63 3.44"),
}
TABLE_10 = {
    "moa_tli3": "54 5.02",
    "moa_tli1": "58 4.70",
    "moa": "57 4.30",
    "eagle2": "43 2.82",
    "independent": "34 3.17",
}


def by_family_table(title: str, report: Report, labels: Sequence[str]) -> ResultTable:
    """Build a row per way: speed over the plain loop and tau of every family, and over all prompts."""
    prompts: Prompts = report["prompts"]
    families: list[str | None] = list(dict.fromkeys(prompt["family"] for prompt in prompts))
    families = [*families, None] if len(families) > 1 else [None]
    rows = []
    for label in labels:
        tau = report["drafters"].get(label)
        row = [label]
        for family in families:
            asked = prompts if family is None else of_family(prompts, family)
            row.append(_cell(speed_ratio(asked, label, PLAIN)))
            accepted = None if tau is None else tau["overall" if family is None else "tau"]
            accepted = accepted[family] if isinstance(accepted, dict) else accepted
            interval = None if tau is None else tau["tau_ci95"]["all" if family is None else family]
            row.append(plus_minus(accepted, interval, 2))
        rows.append(row)
    columns = ["way", *(f"{name or 'all'}, {what}" for name in families for what in ("x plain", "tau"))]
    return table(title, columns, rows, caption=f"tau: tokens a verdict, bonus included; {OVER_PROMPTS}")


def _cell(estimate: Estimate | None) -> str:
    return "-" if estimate is None else plus_minus(estimate.figure, estimate.interval, 2)


def _papers(title: str, figures: Mapping[str, tuple[str, ...]]) -> ResultTable:
    columns = ["way", *(f"{name}, {what}" for name in FAMILIES for what in ("x vanilla", "tau"))]
    return table(title, columns, [[role, *" ".join(cells).split()] for role, cells in figures.items()])


def _ways(setup: PaperSetup, report: Report, roles: Sequence[str]) -> list[str]:
    """Return the labels of the roles and of transformers' own ways that were measured."""
    labels = [setup.label(role) for role in setup.present(*roles)]
    return [*labels, *(way for way in report["speeds"] if way.startswith("generate"))]


def tau_claims(setup: PaperSetup, reports: Reports, name: str, pairs: Sequence[tuple[str, str, str]]) -> list[Claim]:
    """Return a claim per (role above, role below, the paper's own figures): the first one's tau is larger.

    It is over all seeds of the measurement `name` that have both.
    """
    return _role_claims("tau", tau_ratio, setup, reports, name, pairs)


def speed_claims(setup: PaperSetup, reports: Reports, name: str, pairs: Sequence[tuple[str, str, str]]) -> list[Claim]:
    """Return a claim per pair, as `tau_claims`: the first one is faster."""
    return _role_claims("speed", speed_ratio, setup, reports, name, pairs)


def _role_claims(
    what: str,
    compare: Callable[[Prompts, str, str, Sequence[Prompts]], Estimate | None],
    setup: PaperSetup,
    reports: Reports,
    name: str,
    pairs: Sequence[tuple[str, str, str]],
) -> list[Claim]:
    first, *more = (report["prompts"] for _, report in setup.reports_of_seeds(name, reports))

    def ratio(above: str, below: str) -> Estimate | None:
        # A seed's directory has the name of the recipe, so that a role has the same label in all of them.
        both = len(setup.present(above, below)) == 2
        return compare(first, setup.label(above), setup.label(below), more) if both else None

    return [Claim(f"{what}: {above} > {below}", papers, ratio(above, below)) for above, below, papers in pairs]


def tau_plot(setup: PaperSetup, report: Report, papers: Mapping[str, float], path: Path) -> None:
    """Draw our tau of every role beside the paper's."""
    roles = [role for role in setup.present(*papers) if setup.label(role) in report["drafters"]]
    with saved_figure(path, figsize=(7, 3.6)) as (_, axes):
        own = [report["drafters"][setup.label(role)] for role in roles]
        heights = [drafted["overall"] for drafted in own]
        reach = [
            [
                abs(height - (drafted["tau_ci95"]["all"] or (height, height))[end])
                for height, drafted in zip(heights, own, strict=True)
            ]
            for end in (0, 1)
        ]
        axes.bar([place - 0.2 for place in range(len(roles))], heights, 0.38, yerr=reach, color=COLORS[0], label="here")
        axes.bar(
            [place + 0.2 for place in range(len(roles))],
            [papers[role] for role in roles],
            0.38,
            color=COLORS[1],
            label="the paper",
        )
        axes.set_xticks(range(len(roles)), roles)
        axes.set_ylabel("tau, tokens a verdict")
        axes.legend(frameon=False)


def _show_table_2(setup: PaperSetup, reports: Reports) -> Shown:
    own, papers_tree = reports[OWN_TREES], reports[PAPERS_TREES]
    means = {role: float(cells[-1].split()[1]) for role, cells in TABLE_2.items()}
    return Shown(
        tables=[
            by_family_table("trees of the drafters' own size", own, _ways(setup, own, TABLE_2_ROLES)),
            by_family_table(
                "the paper's trees: breadth 8, depth 6, 62 nodes", papers_tree, _ways(setup, papers_tree, TABLE_2_ROLES)
            ),
        ],
        papers=[_papers("Table 2: Llama-3-8B-Instruct on Spec-Bench, one GPU", TABLE_2)],
        claims=[
            *tau_claims(
                setup,
                reports,
                PAPERS_TREES,
                (
                    ("moa", "eagle2", "4.22 > 3.60"),
                    ("moa_tli1", "moa", "4.50 > 4.22"),
                    ("moa_tli3", "moa_tli1", "4.79 > 4.50"),
                    ("moa", "independent", "4.22 > 3.51"),
                    ("eagle2", "independent", "3.60 > 3.51"),
                ),
            ),
            *speed_claims(
                setup,
                reports,
                OWN_TREES,
                (
                    ("moa", "eagle2", "1.95 > 1.78"),
                    ("moa_tli1", "moa_tli3", "1.95 > 1.79"),
                    ("eagle2", "independent", "1.78 > 1.23"),
                ),
            ),
        ],
        plots=[Plot("tau with the paper's trees", partial(tau_plot, setup, papers_tree, means))],
    )


def _show_ablation(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[CHAINS]
    return Shown(
        tables=[by_family_table("chains of 4", report, [setup.label(role) for role in setup.present(*ABLATION)])],
        papers=[
            table(
                "Table 5: HumanEval, chains of at most 4, 2.4 B tokens of training",
                ("way", "tokens/s", "tau"),
                [[role, *cells.split()] for role, cells in TABLE_5.items()],
            )
        ],
        claims=tau_claims(
            setup,
            reports,
            CHAINS,
            (
                ("moa", "moa_nolsa", "2.14 > 1.93"),
                ("moa_nolsa", "eagle2", "1.93 > 1.45"),
                ("moa_tli1", "moa", "2.25 > 2.14"),
                ("moa_tli3", "moa_tli1", "2.54 > 2.25"),
                ("eagle2", "eagle2_wide", "1.45 > 1.28"),
                ("eagle2_wide", "eagle2_deep", "1.28 > 1.01"),
            ),
        ),
    )


def _show_code(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[CODE]
    roles = (*TABLE_2_ROLES[:5], "lookup", "suffix")
    return Shown(
        tables=[by_family_table("code, trees of the drafters' own size", report, _ways(setup, report, roles))],
        papers=[
            table(
                "Table 10: HumanEval, one GPU (vanilla: 33 tokens/s; Ouroboros: 39 tokens/s, tau 2.37)",
                ("way", "tokens/s", "tau"),
                [[role, *cells.split()] for role, cells in TABLE_10.items()],
            )
        ],
        claims=[
            *tau_claims(
                setup, reports, CODE, (("moa", "eagle2", "4.30 > 2.82"), ("moa", "independent", "4.30 > 3.17"))
            ),
            *speed_claims(
                setup,
                reports,
                CODE,
                (("moa", "eagle2", "57 > 43 tokens/s"), ("moa", "lookup", "57 > 39 (Ouroboros)")),
            ),
        ],
    )


def _show_second(setup: PaperSetup, reports: Reports) -> Shown:
    report, second = reports[SECOND], setup.second
    assert second is not None
    return Shown(
        tables=[by_family_table("the second target", report, _ways(second, report, tuple(TABLE_9)))],
        papers=[_papers("Table 9: Qwen2.5-3B-Instruct on Spec-Bench, one GPU", TABLE_9)],
        claims=[
            *tau_claims(
                second, reports, SECOND, (("moa", "eagle2", "3.90 > 3.31"), ("moa", "independent", "3.90 > 3.44"))
            ),
            *speed_claims(
                second, reports, SECOND, (("moa", "eagle2", "1.80 > 1.66"), ("eagle2", "independent", "1.66 > 1.63"))
            ),
        ],
    )


def _second_target(setup: PaperSetup) -> Sequence[Measurement]:
    second = setup.second
    if second is None or not second.present(*TABLE_9):
        return ()
    return second.over_seeds(lambda one, roles: one.comparison(SECOND, roles), tuple(TABLE_9))


def _show_cost(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[OWN_TREES]
    plain = report["speeds"][PLAIN]
    token_ms = 1e3 / plain["tokens_per_s"]
    rows = []
    for label, drafted in report["drafters"].items():
        level, interval = drafted["draft_ms_per_level"], drafted["draft_ms_per_level_ci95"]
        share = None if interval is None else (interval[0] / token_ms, interval[1] / token_ms)
        rows.append([label, plus_minus(level, interval, 2), plus_minus(level / token_ms, share, 2)])
    levels = {
        role: report["drafters"][setup.label(role)]["draft_ms_per_level"] for role in setup.present("moa", "eagle2")
    }
    notes = (
        [f"moa's level takes {levels['moa'] / levels['eagle2']:.2f} times as long as eagle2's"]
        if len(levels) > 1
        else []
    )
    return Shown(
        tables=[
            table(
                f"a drafted level (the target's token: {token_ms:.2f} ms)",
                ("way", "ms a level", "of a token"),
                rows,
                caption=OVER_PROMPTS,
            ),
            *_energy_tables(report),
        ],
        notes=notes,
    )


def _energy_tables(report: Report) -> list[ResultTable]:
    """Return a table of the energy of a token; none of a machine without a meter."""
    rows = [
        [way, plus_minus(speed["joules_per_token"], speed["joules_per_token_ci95"], 3)]
        for way, speed in report["speeds"].items()
        if speed.get("joules_per_token") is not None  # nor has an older report any
    ]
    caption = f"of the whole processor, by its own counters; {OVER_PROMPTS}"
    return [table("energy", ("way", "joules a token"), rows, caption=caption)] if rows else []


TABLE_2_EXHIBIT = Exhibit(
    name="moa-table-2",
    paper=PAPER,
    title="Table 2: speed and acceptance by kind of text",
    differs="another target, other drafters and prompts; one processor instead of a GPU, where a pass over 63 tokens "
    "costs far more than a token, so that the drafters' own smaller trees stand beside the paper's; float32.",
    needs=lambda setup: (
        *setup.own_trees_over_seeds,
        *setup.over_seeds(lambda one, roles: one.comparison(PAPERS_TREES, roles, *PAPERS_TREE), TABLE_2_ROLES[:5]),
    ),
    show=_show_table_2,
)
TABLE_5_EXHIBIT = Exhibit(
    name="moa-table-5",
    paper=PAPER,
    title="Table 5: what layer self-attention and target layer inference bring, and EAGLE wider and deeper",
    differs="the corpus' code instead of HumanEval; moa_nolsa has TLI = 0 and takes the last layer's states.",
    needs=lambda setup: setup.over_seeds(
        lambda one, roles: one.comparison(CHAINS, roles, *PAPERS_CHAIN, families="code"), ABLATION
    ),
    show=_show_ablation,
)
TABLE_9_EXHIBIT = Exhibit(
    name="moa-table-9",
    paper=PAPER,
    title="Table 9: another target, whose queries, keys and values have a bias",
    differs="a Qwen2 of the embedded target's size, trained on the same corpus (`outrider-lab paper train`).",
    needs=_second_target,
    show=_show_second,
)
TABLE_10_EXHIBIT = Exhibit(
    name="moa-table-10",
    paper=PAPER,
    title="Table 10: code on one device, beside drafting without weights",
    differs="prompt lookup and a suffix tree stand for Ouroboros, which also needs no trained drafter.",
    needs=lambda setup: setup.over_seeds(
        lambda one, roles: one.comparison(CODE, roles, families="code"), (*TABLE_2_ROLES[:5], "lookup", "suffix")
    ),
    show=_show_code,
)
COST_EXHIBIT = Exhibit(
    name="moa-a5",
    paper=PAPER,
    title="A.5: what a drafted level costs",
    differs="the paper counts operations and finds MoA's order to be EAGLE's; these are times.",
    needs=lambda setup: (setup.own_trees,),
    show=_show_cost,
)
EXHIBITS = (TABLE_2_EXHIBIT, TABLE_5_EXHIBIT, TABLE_9_EXHIBIT, TABLE_10_EXHIBIT, COST_EXHIBIT)
