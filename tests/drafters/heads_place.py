"""Files of heads that a test writes and loads, states to draft from, and how near numbers must be."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from outrider_drafters import Drafter, DraftState, TargetWeights, TreeShape, grow_tree, load_drafter, load_tap
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree


class Place:
    """A drafter directory of which both halves are loaded."""

    def __init__(self, path: Path, target: Path, frozen: TargetWeights, file: str) -> None:
        self.path, self.target, self.frozen, self.file = path, target, frozen, file

    def write(self, tensors: Mapping[str, torch.Tensor | None], config=None, file: str | None = None) -> "Place":
        """Tensors that are None are left out."""
        self.path.mkdir(exist_ok=True)
        stored = {name: tensor.clone().contiguous() for name, tensor in tensors.items() if tensor is not None}
        save_file(stored, self.path / (file or self.file))
        (self.path / "config.json").write_text(json.dumps(config or {}))
        return self

    def load(self, options: str = "") -> Drafter:
        drafter = load_drafter(f"{self.path}{options}", self.frozen)
        assert load_tap(f"{self.path}{options}", self.target).info == drafter.tap
        return drafter

    def refused(self, message: str, options: str = "") -> None:
        """By both halves, in words that name the head."""
        with pytest.raises(UsageError, match=message) as refusal:
            load_drafter(f"{self.path}{options}", self.frozen)
        assert str(self.path) in str(refusal.value) or "config.json" in str(refusal.value)
        with pytest.raises(UsageError, match=message):
            load_tap(f"{self.path}{options}", self.target)


def fed(drafter: Drafter, arrays: Mapping[str, torch.Tensor], position: int = 10) -> DraftState:
    """A state with the newest feature just before its root."""
    state = drafter.new_state()
    state.append(arrays["input_ids"].flatten().tolist()[: position + 2])
    state.add_features(position, arrays["hidden_post_norm"][position : position + 1])
    return state


def close(ours: torch.Tensor, golden: torch.Tensor) -> None:
    torch.testing.assert_close(ours, golden, atol=1e-4, rtol=0)


def near(ours: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(ours), reference, atol=1e-4, rtol=1e-4)


def begun(drafter: Drafter, tokens: Sequence[int], rows: torch.Tensor | None = None) -> DraftState:
    """A state of these tokens, with the features of the first of them, if the drafter wants any."""
    state = drafter.new_state()
    state.append(tokens)
    if rows is not None and drafter.tap.width:
        state.add_features(0, rows)
    return state


def along(state: DraftState, tokens: Iterable[int]) -> torch.Tensor:
    """Logits after the root and after each of a chain of tokens."""
    logits = [state.root_logits(), *(state.expand([token], [row - 1])[0] for row, token in enumerate(tokens))]
    return torch.stack([torch.as_tensor(row) for row in logits])


def random_network(seed: int, build: Callable[[], Any], std: float = 0.3) -> Any:
    """A network of weights large enough that every input matters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build().eval().requires_grad_(False)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=std)
    return network


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((token,) if parent == ROOT else (*paths[parent], token))
    return paths


SETTINGS = [(24, 4, 6), (60, 7, 10), (5, 3, 1)]  # of the published trees: total_token, depth, top_k


def check_published_tree(state: DraftState, arrays: Mapping[str, torch.Tensor], number: int) -> None:
    """That a state drafts the tree of that setting, as SafeAILab's code gave it."""
    total, depth, top_k = SETTINGS[number]
    tree = grow_tree(state, TreeShape(top_k, depth + 1, total - 1))
    assert list(tree.tokens) == arrays[f"tree{number}_draft_tokens"][0, 1:].tolist()
    assert list(tree.depths()) == arrays[f"tree{number}_position_ids"][1:].tolist()
    assert tree.ancestors().tolist() == arrays[f"tree{number}_tree_mask"][1:, 1:].bool().tolist()


def check_published_generation(made: Any, arrays: Mapping[str, torch.Tensor], directory: Path) -> None:
    """That a generation is that of SafeAILab's code, round by round, and its drafter's cache at the end."""
    rounds = json.loads((directory / "trace.json").read_text())["rounds"]
    assert made.accepted == arrays["accept_lengths"].tolist()
    assert made.tokens == arrays["eagle_output_ids"][0].tolist() + arrays["final_pending_token"][0].tolist()
    for number, (tree, expected) in enumerate(zip(made.trees, rounds, strict=True)):
        assert list(tree.tokens) == expected["draft_tokens"][1:]
        assert list(tree.depths()) == expected["tree_position_ids"][1:]
        assert tree.ancestors().tolist() == arrays[f"round{number:02}_tree_mask"][1:, 1:].bool().tolist()
    made.state.root_logits()
    close(made.state._cache.keys, arrays["final_drafter_k"])
    close(made.state._cache.values, arrays["final_drafter_v"])
