"""Files of heads that a test writes and loads, and a state that has one feature. For Medusa's and Hydra's tests."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider_drafters import Drafter, DraftState, TargetWeights, load_drafter, load_tap
from outrider_proto.errors import UsageError


class Place:
    """A drafter directory of which both halves are loaded."""

    def __init__(self, path: Path, target: Path, frozen: TargetWeights, file: str) -> None:
        self.path, self._target, self._frozen, self._file = path, target, frozen, file

    def write(self, tensors: Mapping[str, torch.Tensor | None], config=None, file: str | None = None) -> "Place":
        """Tensors that are None are left out."""
        self.path.mkdir(exist_ok=True)
        stored = {name: tensor.clone().contiguous() for name, tensor in tensors.items() if tensor is not None}
        save_file(stored, self.path / (file or self._file))
        (self.path / "config.json").write_text(json.dumps(config or {}))
        return self

    def load(self) -> Drafter:
        drafter = load_drafter(self.path, self._frozen)
        assert load_tap(self.path, self._target).info == drafter.tap
        return drafter

    def refused(self, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            load_drafter(self.path, self._frozen)
        with pytest.raises(UsageError, match=message):
            load_tap(self.path, self._target)


def fed(drafter: Drafter, arrays: Mapping[str, torch.Tensor], position: int = 10) -> DraftState:
    """A state with the newest feature just before its root."""
    state = drafter.new_state()
    state.append(arrays["input_ids"].flatten().tolist()[: position + 2])
    state.add_features(position, arrays["hidden_post_norm"][position : position + 1])
    return state


def close(ours: torch.Tensor, golden: torch.Tensor) -> None:
    torch.testing.assert_close(ours, golden, atol=1e-4, rtol=0)
