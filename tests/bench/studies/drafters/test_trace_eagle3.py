"""`outrider-bench trace` with EAGLE-3 heads that no published trace is of: GGUF files, and layers named on the way."""

import json

import pytest
import traces


def traced(golden, drafter: str, new_tokens: int, **settings) -> dict:
    prompt = json.loads((golden / "eagle3_llama" / "trace.json").read_text())["prompt_ids"]
    report = traces.trace(golden / "target_l8", f"{golden}/eagle3_llama/{drafter}", prompt, new_tokens, **settings)
    assert report["matches_baseline"]
    return report


@pytest.mark.parametrize("drafter", ["drafter_gguf", "drafter_gguf/eagle3-f32.gguf"])
def test_gguf_drafts_as_the_published_code(golden, drafter):
    rounds = json.loads((golden / "eagle3_llama" / "trace.json").read_text())["rounds"]
    report = traced(golden, drafter, 61, levels=5, breadth=6, budget=23)
    assert report["family"] == "eagle3"
    assert len(report["cycles"]) == len(rounds)
    for cycle, expected in zip(report["cycles"], rounds, strict=True):
        assert [cycle["root"], *cycle["tokens"]] == expected["draft_tokens"]
        assert [0, *cycle["depths"]] == expected["tree_position_ids"]
        assert len(cycle["accepted"]) == expected["accept_length"]
        assert cycle["bonus"] == expected["next_token"]


@pytest.mark.parametrize("layers", ["2-5-8", "0-1-3"])
def test_layers_named_on_the_way(golden, layers):
    """Output is the target's whatever the head is fed: also the last layer's output, which no hidden_states hold."""
    report = traced(golden, f"drafter,target_layers={layers}", 24)
    assert report["mean_acceptance_length"] < traced(golden, "drafter", 24)["mean_acceptance_length"]
