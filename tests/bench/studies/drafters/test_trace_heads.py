"""`outrider-bench trace` with heads, beyond the golden cases: their own trees, a whole model with its heads, and
Hydra++, whose prefix layer remembers a session on the server."""

import shutil
from pathlib import Path

import pytest
import torch
import traces
from safetensors.torch import load_file, save_file

PROMPT = [1, 205, 36, 252, 143, 44, 179, 124, 18, 114, 78, 177]


def trace(target: Path, drafter: Path, new_tokens: int = 32, **settings) -> dict:
    report = traces.trace(target, drafter, PROMPT, new_tokens, **settings)
    assert report["matches_baseline"]
    return report


@pytest.fixture
def target(golden: Path) -> Path:
    return golden / "target_vicuna_tiny"


@pytest.mark.parametrize(("case", "num_nodes"), [("medusa_v01", 63), ("hydra_mlp", 61)])
def test_heads_draft_along_their_own_choices_unless_asked_otherwise(golden, target, case, num_nodes):
    """mc_sim_7b_63, without its fourth level where there are three heads."""
    own = trace(target, golden / case / "drafter")
    assert {len(cycle["tokens"]) for cycle in own["cycles"]} == {num_nodes}
    dynamic = trace(target, golden / case / "drafter", breadth=3, levels=9, budget=12)
    assert {len(cycle["tokens"]) for cycle in dynamic["cycles"]} == {12}
    assert max(max(cycle["depths"]) for cycle in dynamic["cycles"]) <= 4
    assert dynamic["output_ids"] == own["output_ids"]


def test_a_whole_model_is_target_and_drafter(golden, target, tmp_path):
    """Medusa v1.0: its heads were trained with the model beside them."""
    heads = torch.load(golden / "medusa_v01" / "drafter" / "medusa_lm_head.pt", weights_only=True)
    whole = load_file(target / "model.safetensors") | {f"medusa_head.{name}": tensor for name, tensor in heads.items()}
    directory = tmp_path / "medusa-1.0"
    shutil.copytree(target, directory, copy_function=shutil.copyfile)
    save_file(whole, directory / "model.safetensors", metadata={"format": "pt"})
    report = trace(directory, directory)
    assert report["family"] == "medusa"
    assert report["cycles"] == trace(target, golden / "medusa_v01" / "drafter")["cycles"]
