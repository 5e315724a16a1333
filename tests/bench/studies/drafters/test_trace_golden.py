"""`outrider-bench trace` on every golden case: trees, accepted paths and texts of the published codes."""

import json
from pathlib import Path

import pytest
import traces
from safetensors.torch import load_file

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
TARGETS = {"eagle2": "target_l4", "eagle3": "target_l8", "moa": "target_tiny"}
HEADS_TARGET = "target_vicuna_tiny"
DEEPSPEC = "deepspec_eagle3_3taps"
BLOCKS = ("dflash_zlab", "dspark_deepspec")
PEAGLE = "peagle_speculators"  # read by tests/drafters/families/test_peagle.py


def cases(description: str, key: str) -> list[str]:
    """Folders with a drafter, whose description has this key."""
    described = [path.parent for path in sorted(GOLDEN.glob(f"*/{description}")) if (path.parent / "drafter").is_dir()]
    return [case.name for case in described if key in json.loads((case / description).read_text())]


def trace(case: str, target: str, prompt: list[int], new_tokens: int, *options, **settings) -> dict:
    report = traces.trace(GOLDEN / target, GOLDEN / case / "drafter", prompt, new_tokens, *options, **settings)
    assert report["family"] in case
    return report


def nodes(cycle: dict) -> list[int]:
    """With the root as node 0, as the published codes number them."""
    return [cycle["root"], *cycle["tokens"]]


@pytest.mark.parametrize("case", cases("trace.json", "rounds"))
def test_eagle(case):
    reference = json.loads((GOLDEN / case / "trace.json").read_text())
    shape = {"levels": 5, "breadth": 6, "budget": 23}  # total_token/depth/top_k 24/4/6
    report = trace(case, TARGETS[case[:6]], reference["prompt_ids"], 63, **shape)
    assert report["matches_baseline"]
    assert len(report["cycles"]) >= len(reference["rounds"])
    for cycle, expected in zip(report["cycles"], reference["rounds"], strict=False):
        assert nodes(cycle) == expected["draft_tokens"]
        assert [0, *cycle["depths"]] == expected["tree_position_ids"]
        leaf_path = expected["retrieve_indices"][expected["best_candidate"]]
        assert [node + 1 for node in cycle["accepted"]] == leaf_path[1 : expected["accept_length"] + 1]
        assert cycle["bonus"] == expected["next_token"]


def test_deepspec():
    arrays = {name: array[0].tolist() for name, array in load_file(GOLDEN / DEEPSPEC / "golden.safetensors").items()}
    prompt = arrays["prompt_ids"]
    report = trace(DEEPSPEC, TARGETS["eagle3"], prompt, 24, levels=3, breadth=1, budget=3)
    assert report["matches_baseline"]
    assert report["output_ids"] == arrays["sequence_ids"][len(prompt) :]
    assert nodes(report["cycles"][0]) == [*arrays["next_token"], *arrays["greedy0_tokens"]]


@pytest.mark.parametrize("case", BLOCKS)
def test_block_drafters(case):
    """The first of their rounds begins where the prompt ends."""
    arrays = {name: array[0].tolist() for name, array in load_file(GOLDEN / case / "golden.safetensors").items()}
    prompt, drafted = arrays["prompt_ids"], arrays["round0_greedy_tokens"]
    report = trace(case, "target_l8", prompt, 24, levels=len(drafted), breadth=1, budget=len(drafted))
    assert report["matches_baseline"]
    assert report["output_ids"] == arrays["sequence_ids"][len(prompt) :]
    assert nodes(report["cycles"][0]) == [*arrays["round0_anchor_token"], *drafted]


@pytest.mark.parametrize("case", cases("meta.json", "runs"))
@pytest.mark.parametrize("run", ["tree_d5_b4_t14", "tree_d7_b8_t62"])
def test_moa(case, run):
    meta = json.loads((GOLDEN / case / "meta.json").read_text())
    expected, prompt = meta["runs"][run], meta["prompt"]
    shape = {"levels": expected["depth_param"] - 1, "breadth": expected["breadth"], "budget": expected["total_tokens"]}
    report = trace(case, TARGETS["moa"], prompt, 48, **shape, tli=case.removeprefix("moa_tli")[0])
    assert report["output_ids"] == expected["output"][len(prompt) :]
    assert report["matches_baseline"]
    lengths = [len(cycle["accepted"]) + 1 for cycle in report["cycles"]]
    assert lengths == expected["tokens_per_cycle"][: len(lengths)]
    assert len(lengths) >= len(expected["tokens_per_cycle"]) - 1
    assert report["mean_acceptance_length"] == pytest.approx(sum(lengths) / len(lengths))
    trees = load_file(GOLDEN / case / f"{run}.safetensors")
    for number, cycle in enumerate(report["cycles"][:3]):
        assert nodes(cycle) == trees[f"c{number}_draft_tokens"].flatten().tolist()


@pytest.mark.parametrize("case", cases("meta.json", "choices"))
@pytest.mark.parametrize("run", ["greedy", "typical_T0_7"])
def test_heads(case, run, tmp_path):
    meta = json.loads((GOLDEN / case / "meta.json").read_text())
    expected = meta[run]
    choices = tmp_path / "choices.json"
    choices.write_text(json.dumps(meta["choices"]))
    rule, settings = [], {"choices": choices}
    if expected["temperature"]:
        rule = ["--set", "acceptance=typical", "--set", f"temperature={expected['temperature']}"]
        settings |= {"epsilon": expected["posterior_threshold"], "alpha": expected["posterior_alpha"]}
    new_tokens = len(expected["output"]) - len(expected["prompt"])
    report = trace(case, HEADS_TARGET, expected["prompt"], new_tokens, *rule, **settings)
    assert report["output_ids"] == expected["output"][len(expected["prompt"]) :]
    assert report["matches_baseline"] or expected["temperature"]
    assert len(report["cycles"]) == len(expected["cycles"])
    for cycle, theirs in zip(report["cycles"], expected["cycles"], strict=True):
        assert nodes(cycle) == theirs["tree_candidates"]
        assert len(cycle["accepted"]) == theirs["accept_length"]
        if theirs["accept_length"]:
            path = leaves(meta["choices"])[theirs["best_candidate"]]
            assert cycle["depths"][cycle["accepted"][-1]] == theirs["accept_length"]
            assert cycle["accepted"][-1] == ordered(meta["choices"]).index(path[: theirs["accept_length"]])


def ordered(choices: list[list[int]]) -> list[tuple[int, ...]]:
    """Paths in the order of their nodes."""
    return sorted(map(tuple, choices), key=lambda path: (len(path), path))


def leaves(choices: list[list[int]]) -> list[tuple[int, ...]]:
    """Leaves' paths in the order of the published codes' rows: from the last one on."""
    paths = ordered(choices)
    return [path for path in reversed(paths) if not any(other[: len(path)] == path != other for other in paths)]


def test_no_case_is_left_out():
    """Every folder with a drafter is read by one of the tests above, or by the one named."""
    read = {*cases("trace.json", "rounds"), *cases("meta.json", "runs"), *cases("meta.json", "choices")}
    assert read | {DEEPSPEC, PEAGLE, *BLOCKS} == {path.parent.name for path in GOLDEN.glob("*/drafter")}
