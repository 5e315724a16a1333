"""A figure of the Hydra paper where drafters are missing; test_report.py makes the others of docs/papers again."""

from outrider_lab.paper.exhibits import EXHIBITS
from outrider_lab.paper.exhibits.hydra import SMALL_TREES
from outrider_lab.paper.setup import OWN_TREES, paper_setup

JUDGED = {"medusa": 25, "hydra": 37}  # tokens of 10 verdicts on every prompt, and its seconds


def compared():
    """A report of `drafters`: 12 prompts that differ in difficulty, on which everybody is as good as `JUDGED` says."""
    prompts = [
        {
            "family": "code",
            "judged": {role: tokens + number % 3 for role, tokens in JUDGED.items()},
            "verdicts": dict.fromkeys(JUDGED, 10),
            "seconds": {role: [1.0 / tokens] * 2 for role, tokens in JUDGED.items()},
        }
        for number in range(12)
    ]
    drafters = {role: {"overall": tokens / 10, "tau_ci95": {"all": (2.0, 4.0)}} for role, tokens in JUDGED.items()}
    speeds = {role: {"speedup": tokens / 20, "speedup_ci95": None} for role, tokens in JUDGED.items()}
    return {"prompts": prompts, "drafters": drafters, "speeds": speeds}


def test_a_missing_drafter_leaves_its_claims_unmeasured(tmp_path):
    setup = paper_setup(None, (), None, quick=False)
    shown = EXHIBITS["hydra-figure-5"].show(setup, dict.fromkeys((OWN_TREES, SMALL_TREES), compared()))
    assert {claim.text: claim.outcome for claim in shown.claims} == {
        "tau: hydra > medusa": "holds",
        "tau: hydra > hydra_plain": "not measured",
        "speed: hydra > medusa": "holds",
        "speed: hydra > hydra_plain": "not measured",
    }
    assert [row[0] for row in shown.tables[0].rows] == ["medusa", "hydra"]
    assert shown.tables[0].rows[1][2:4] == ("3.70 +0.30 -1.70", "1.85")
    shown.plots[0].draw(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 5_000
