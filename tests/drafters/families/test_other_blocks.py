"""Settings of a published head that make another block of it than ours are refused by name, whatever the family."""

import json
import shutil

import pytest

from outrider_drafters import TargetWeights, load_drafter
from outrider_proto.errors import UsageError

HEADS = [("eagle2_llama", "target_l4"), ("eagle3_llama", "target_l8"), ("moa_tli0", "target_tiny")]
OTHERS = [
    ({"hidden_act": "gelu"}, "hidden_act=gelu: need silu"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: need 1"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "partial_rotary_factor=0.25: need 1",
    ),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "differs by layers (full_attention)"),
    ({"embedding_multiplier": 12}, "embedding_multiplier=12: need 1"),
    ({"residual_multiplier": 0.22}, "residual_multiplier=0.22: need 1"),
    ({"attention_multiplier": 0.0078125}, "attention_multiplier=0.0078125: need 0.25"),
]


def loaded(golden, tmp_path, case: str, target: str, changes: dict):
    shutil.copytree(golden / case / "drafter", tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    config = json.loads(path.read_text())
    path.chmod(0o644)
    path.write_text(json.dumps(config | changes))
    return load_drafter(tmp_path / "head", TargetWeights.load(golden / target))


@pytest.mark.parametrize(("changes", "message"), OTHERS, ids=str)
@pytest.mark.parametrize(("case", "target"), HEADS)
def test_another_block_is_refused_by_name(golden, tmp_path, case, target, changes, message):
    if case == "moa_tli0" and "attention_multiplier" in changes:
        message = message.removesuffix("0.25")  # its heads have another width
    with pytest.raises(UsageError) as told:
        loaded(golden, tmp_path, case, target, changes)
    assert message in str(told.value)


@pytest.mark.parametrize(("case", "target"), HEADS)
def test_settings_that_change_nothing_are_fine(golden, tmp_path, case, target):
    plain = {"hidden_act": "silu", "partial_rotary_factor": 1.0, "residual_multiplier": 1.0, "sliding_window": 4096}
    loaded(golden, tmp_path, case, target, plain)
