"""Notes on EAGLE-3 in a llama.cpp fork (depth, quantized drafters, compact vocabularies), and those of a bug hunt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from outrider_bench.core.bootstrap import ratio_interval
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.studies.drafters.comparison_report import PLAIN
from outrider_bench.studies.pair.verify_cost import VerifyCostStudy
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB
from outrider_drafters.readers.config import read_json
from outrider_lab.paper.claims import Claim, Estimate, Prompts, Report, ratio_of_ratios, speed_ratio, tau_ratio
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.exhibits.moa import by_family_table
from outrider_lab.paper.measurement import Measurement, Reports, as_measured, settings
from outrider_lab.paper.setup import PaperSetup
from outrider_lab.studies.depth_sweep import DepthSweepStudy, depth_table
from outrider_lab.studies.edge_weights import EdgeWeightsStudy
from outrider_models.core.embedded import drafter_dir, shipped_drafters, target_dir

NOTES, BUG_HUNT = "EAGLE-3 notes", "EAGLE-3 bug hunt"
ROLE = "eagle3"
DEPTHS, WEIGHTS, PASSES, VOCABULARY = "depths", "edge-weights", "verify-cost", "drafters-vocabulary"
EQUIVALENT = 0.03  # a share of tau
COMPACT_ROLES = ("eagle2", "moa")
DEPTH_TABLE = (  # n_draft, drafted, accepted, share
    ("1", "101", "101", "100.000 %"),
    ("2", "202", "101", "50.000 %"),
    ("3", "195", "65", "33.333 %"),
)
QUANTIZED = (
    ("Q8_0", "569", "73.333 %", "7.93"),
    ("Q4_K_M", "368", "73.333 %", "7.64"),
    ("IQ3_M", "303", "73.333 %", "7.94"),
)
COMPACT = (
    ("Qwen3.5-35B-A3B, drafter with 32,000 of 248,320 tokens", "33.333 %"),
    ("Qwen3.5-9B, drafter with all", "33.333 %"),
)
GAMMAS = {  # acceptance, verify cost in decodes, speed-up with batched GEMV; acceptance, speed-up with GEMM
    "1, single decode": "22.7% 1.00 0.95 29.8% 0.95",
    "1": "20.6% ~1.5 0.75 - -",
    "2": "12.6% ~1.7 0.59 16.9% 1.10",
    "3": "9.1% ~2.1 0.48 11.6% 1.06",
    "4": "7.6% ~2.4 0.41 8.9% 1.02",
    "5": "- - - 7.2% 0.96",
    "6": "5.2% ~3.1 0.32 6.0% 0.93",
    "8": "4.1% ~3.7 0.27 4.5% 0.86",
}
VERIFY = {  # batched GEMV, GEMM
    "1": "13.14 1.05 13.04 1.04",
    "2": "19.51 1.56 13.52 1.08",
    "3": "26.10 2.09 13.59 1.09",
    "5": "38.72 3.10 13.88 1.11",
    "9": "64.15 5.14 15.03 1.20",
}
SLOTS = ("12/125", "8/122", "5/119", "6/116", "8/113", "13/110", "17/107", "17/104")


def _depths(setup: PaperSetup) -> Sequence[Measurement]:
    """Return the sweep of chains of 1 to 8 tokens; nothing without an EAGLE-3 head."""
    if not setup.present(ROLE):
        return ()
    levels = "2" if setup.is_quick else "8"
    return (Measurement(DEPTHS, ("depth-sweep", *setup.drafters([ROLE]), "--levels", levels, *setup.ask_sweep)),)


def _ways(report: Report) -> Mapping[str, str]:
    """Return the way of each depth."""
    ways: Mapping[str, str] = next(iter(report["ways"].values()))
    return ways


def _accepted_share(prompts: Prompts, way: str) -> Estimate | None:
    """Return accepted over drafted tokens."""
    accepted = [prompt["heads"][way]["accepted_tokens"] for prompt in prompts]
    drafted = [sum(prompt["heads"][way]["drafted_by_confidence"]) for prompt in prompts]
    if not sum(drafted):
        return None
    return Estimate(sum(accepted) / sum(drafted), ratio_interval(accepted, drafted))


def _share_ratio(prompts: Prompts, above: str, below: str) -> Estimate | None:
    measures = []
    for way in (above, below):
        uses = [prompt["heads"][way] for prompt in prompts]
        measures += [[[use["accepted_tokens"] for use in uses]], [[sum(use["drafted_by_confidence"]) for use in uses]]]
    return ratio_of_ratios(*measures)


def _show_depths(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[DEPTHS]
    ways, prompts = _ways(report), report["comparison"]["prompts"]
    claims = [
        Claim(
            f"chains of {depth}: accepted / drafted > 1/{depth}, which the notes hold to be the ceiling",
            papers,
            _accepted_share(prompts, ways[depth]) if depth in ways else None,
            bound=1 / int(depth),
        )
        for depth, papers in (("2", "50 %"), ("3", "33.3 %"))
    ]
    claims.append(
        Claim(
            "tau: chains of 3 > chains of 1",
            "2.00 = 2.00",
            tau_ratio(prompts, ways["3"], ways["1"]) if "3" in ways else None,
        )
    )
    sweep = as_measured(DepthSweepStudy, report)
    return Shown(
        tables=[depth_table(sweep, drafter) for drafter in sweep.ways],
        papers=[
            table("Qwen3.5-9B, temperature 0", ("n_draft", "drafted", "accepted", "accepted / drafted"), DEPTH_TABLE)
        ],
        claims=claims,
        plots=[Plot("acceptance and speed by depth", partial(DepthSweepStudy.plot, sweep))],
        notes=[_own_vocabulary()] if setup.roles[ROLE] == ROLE else [],
    )


def _weights(setup: PaperSetup) -> Sequence[Measurement]:
    if not setup.present(ROLE):
        return ()
    kinds = settings(weights='["float32", "int4"]') if setup.is_quick else ()
    counts = settings(per_family=setup.extent.per_family, max_new_tokens=setup.extent.new_tokens)
    return (Measurement(WEIGHTS, ("edge-weights", *setup.ask, *setup.drafters([ROLE]), *kinds, *counts)),)


def _show_weights(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[WEIGHTS]
    whole, *coarser = report["edge_weights"]
    return Shown(
        tables=EdgeWeightsStudy.tables(as_measured(EdgeWeightsStudy, report)),
        papers=[
            table(
                "Qwen3.6-27B-Q4_K_M, temperature 0, 36 runs",
                ("draft quant", "MB", "accepted / drafted", "tokens/s"),
                QUANTIZED,
            )
        ],
        claims=[
            Claim(
                f"tau: {one['weights']} is within {EQUIVALENT:.0%} of {whole['weights']}",
                "73.333 % for all",
                ratio_of_ratios([one["judged"]], [one["verdicts"]], [whole["judged"]], [whole["verdicts"]]),
                bound=1 - EQUIVALENT,
                ceiling=1 + EQUIVALENT,
            )
            for one in coarser
        ],
    )


def _compact(setup: PaperSetup) -> list[str]:
    """Return the drafters that ship with a vocabulary of their own, which can be done without."""
    shipped = shipped_drafters(setup.target)
    names = [setup.roles[role] for role in setup.present(*COMPACT_ROLES)]
    return [name for name in names if name in shipped and (drafter_dir(name) / DRAFT_VOCAB).is_file()]


def _vocabulary(setup: PaperSetup) -> Sequence[Measurement]:
    both = [drafter for name in _compact(setup) for drafter in (name, f"{name},draft_vocab=all")]
    return (setup.comparison(VOCABULARY, both),) if both else ()


def _show_vocabulary(setup: PaperSetup, reports: Reports) -> Shown:
    report = reports[VOCABULARY]
    prompts = report["prompts"]
    pairs = {setup.label(name): setup.label(f"{name},draft_vocab=all") for name in _compact(setup)}
    claims = [
        Claim(
            f"tau: {compact} is within {EQUIVALENT:.0%} of all tokens",
            "33.3 % = 33.3 %, of other targets",
            tau_ratio(prompts, compact, whole),
            bound=1 - EQUIVALENT,
            ceiling=1 + EQUIVALENT,
        )
        for compact, whole in pairs.items()
    ]
    claims += [
        Claim(f"speed: {compact} > all tokens", "ours", speed_ratio(prompts, compact, whole))
        for compact, whole in pairs.items()
    ]
    return Shown(
        tables=[by_family_table("vocabularies", report, list(report["drafters"]))],
        papers=[table("chains of 3", ("drafter", "accepted / drafted"), COMPACT)],
        claims=claims,
    )


def _passes(setup: PaperSetup) -> Measurement:
    target = () if setup.target is None else ("--target", setup.target)
    return Measurement(PASSES, ("verify-cost", *target, *settings(repeats=3 if setup.is_quick else 30)))


def _gammas(setup: PaperSetup) -> Sequence[Measurement]:
    return (*sweep, _passes(setup)) if (sweep := _depths(setup)) else ()


def _show_gammas(setup: PaperSetup, reports: Reports) -> Shown:
    report, passes = reports[DEPTHS], reports[PASSES]
    sweep, costs = as_measured(DepthSweepStudy, report), as_measured(VerifyCostStudy, passes)
    drafters = report["comparison"]["drafters"]
    longest = drafters[list(_ways(report).values())[-1]]
    wrong = sum(drafters[way]["mismatches"] for way in _ways(report).values())
    matched = "matched: every answer of every chain is the plain loop's"
    return Shown(
        tables=[
            *(depth_table(sweep, drafter) for drafter in sweep.ways),
            _slots_table(longest["positions"]),
            *VerifyCostStudy.tables(costs),
        ],
        papers=[_papers_gammas(), _papers_slots(), _papers_passes()],
        claims=[*_chain_claims(report), *_pass_claims(passes["costs"])],
        plots=[Plot("time of a pass, in decodes", partial(VerifyCostStudy.plot, costs))],
        notes=[f"{wrong} ANSWERS DIFFER: this is a defect." if wrong else matched],
    )


def _chain_claims(report: Report) -> list[Claim]:
    ways, prompts = _ways(report), report["comparison"]["prompts"]

    def speed(above: str, below: str) -> Estimate | None:
        return speed_ratio(prompts, ways.get(above, above), ways.get(below, below))

    return [
        Claim("speed: chains of 2 > the plain loop", "1.10 > 1 (GEMM)", speed("2", PLAIN)),
        Claim("speed: chains of 2 > chains of 1", "1.10 > 0.95 (GEMM)", speed("2", "1")),
        Claim("speed: chains of 2 > chains of 8", "1.10 > 0.86 (GEMM)", speed("2", "8")),
        Claim(
            "accepted / drafted: chains of 1 > chains of 8",
            "22.7 > 4.1 %",
            _share_ratio(prompts, ways["1"], ways["8"]) if "8" in ways else None,
        ),
    ]


def _pass_claims(costs: Sequence[Mapping[str, Any]]) -> list[Claim]:  # Any: JSON
    papers = {2: "1.56 (GEMV), 1.08 (GEMM)", 8: "9 tokens: 5.14 (GEMV), 1.20 (GEMM)"}
    return [
        Claim(f"a pass over {tokens} tokens costs less than {tokens} decodes", figures, _decodes_saved(costs, tokens))
        for tokens, figures in papers.items()
    ]


def _papers_gammas() -> ResultTable:
    title = "Qwen3-8B: GEMV: 5 prompts of 32 tokens, matched=true; GEMM: 50 of 64, matched=false"
    columns = ("γ", "GEMV: accepted", "verify cost", "speedup_e2e", "GEMM: accepted", "speedup_e2e")
    return table(title, columns, [[gamma, *cells.split()] for gamma, cells in GAMMAS.items()])


def _papers_slots() -> ResultTable:
    return table("by slot, γ = 8", tuple(f"d[{slot}]" for slot in range(len(SLOTS))), [SLOTS], keys=0)


def _papers_passes() -> ResultTable:
    columns = ("tokens", "GEMV, ms", "x decode", "GEMM, ms", "x decode")
    rows = [[tokens, *cells.split()] for tokens, cells in VERIFY.items()]
    return table("a verify of a batch (RTX 5090, 100 tokens before)", columns, rows)


def _decodes_saved(costs: Sequence[Mapping[str, Any]], tokens: int) -> Estimate | None:  # Any: JSON
    """Return how many times as long as a pass over so many tokens as many decodes take."""
    cost = next((one for one in costs if one["tokens"] == tokens), None)
    if cost is None:
        return None
    interval = cost["ratio_ci95"]
    return Estimate(tokens / cost["ratio"], None if interval is None else (tokens / interval[1], tokens / interval[0]))


def _slots_table(positions: Mapping[str, Sequence[float]]) -> ResultTable:
    slots = len(positions["reached"])
    rows = [
        ["accepted, of all verdicts", *(f"{share:.2f}" for share in positions["reached"])],
        ["of those that accepted the one before", *(f"{share:.2f}" for share in positions["kept"])],
    ]
    return table("by slot of the longest chain", ("share", *(f"d[{slot}]" for slot in range(slots))), rows)


def _own_vocabulary() -> str:
    head, target = (read_json(directory / "config.json") for directory in (drafter_dir(ROLE), target_dir()))
    return f"the head's vocabulary: {head['draft_vocab_size']} of {target['vocab_size']} tokens"


EXHIBITS = (
    Exhibit(
        name="eagle3-depth",
        paper=NOTES,
        title="acceptance by depth of the chain",
        differs="their drafts after the first token are never accepted, which the notes lay to EAGLE-3's going on from "
        "states of its own; ours was trained over such states.",
        needs=_depths,
        show=_show_depths,
    ),
    Exhibit(
        name="eagle3-quantization",
        paper=NOTES,
        title="weights of the drafter in fewer bits",
        differs="weight types of edge bundles instead of GGUF's, with trees instead of chains; their head accepts the "
        "same count in all runs, ours is held to an equivalence.",
        needs=_weights,
        show=_show_weights,
    ),
    Exhibit(
        name="eagle3-vocabulary",
        paper=NOTES,
        title="compact vocabularies",
        differs="a head with its compact vocabulary and with all tokens, while the notes compare heads of two targets; "
        "only for targets of whose drafters some can do without theirs.",
        needs=_vocabulary,
        show=_show_vocabulary,
    ),
    Exhibit(
        name="eagle3-gamma",
        paper=BUG_HUNT,
        title="chains of 1 to 8, cost of a pass, acceptance by slot, and whether answers match",
        differs="a processor's passes of a small target in float32, instead of a GPU's of 8 B parameters in bfloat16; "
        "a slot counts where all before it were accepted, while theirs counts also after a mismatch.",
        needs=_gammas,
        show=_show_gammas,
    ),
)
