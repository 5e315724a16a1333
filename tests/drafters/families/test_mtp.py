"""Multi-token-prediction layers are refused by name, and the model around them may still be an independent drafter."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_proto.errors import UsageError

LAYOUTS = {
    "mtp.fc.weight": r"heads \(mtp\.\*\) are not supported: they belong to targets with linear attention",
    "model.mtp.layers.0.input_layernorm.weight": r"heads \(mtp\.\*\)",
    "model.layers.4.eh_proj.weight": r"layer \(eh_proj\) is not supported: its latent attention and experts",
}


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_refused_by_name(name, golden, tmp_path):
    target = golden / "target_tiny"
    tensors = load_file(target / "model.safetensors") | {name: torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((target / "config.json").read_bytes())
    with pytest.raises(UsageError, match=LAYOUTS[name]):
        load_drafter(tmp_path, TargetWeights.load(target))
    with pytest.raises(UsageError, match=LAYOUTS[name]):
        load_tap(tmp_path, target)
    with pytest.raises(UsageError, match=f"holds unknown tensors {name}"):
        load_drafter(f"{tmp_path},family=independent", TargetWeights.load(target))
