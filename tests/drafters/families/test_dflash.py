"""DFlash of z-lab against its formulas written out slowly, as a tap and a state, and what its layout refuses."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from block_formulas import BLOCK, HEAD_DIM, HEADS, MASK, TARGET, THETA, VOCABULARY, WIDTH, block_rows, block_tensors
from safetensors.torch import save_file

from outrider_drafters import Activations, TargetWeights, TreeShape, grow_tree, load_drafter, write_draft_vocab
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import LAST
from outrider_drafters.families.dflash.drafter import LATE_ROWS, DFlashDrafter
from outrider_drafters.families.dflash.family import FAMILY, load_network
from outrider_drafters.families.dflash.layout import family_of
from outrider_drafters.families.dflash.network import DFlash
from outrider_drafters.families.dflash.tap import DFlashTap
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "rope_theta": THETA,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "num_target_layers": 6,
    "block_size": BLOCK,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 5]},
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sliding and causal": SLIDING,
    "sliding, not causal": SLIDING | {"is_causal": False},
    "all causal": {"is_causal": True},
    "scales": {"input_embedding_scale": 1.5, "output_multiplier": 0.5, "final_logit_softcapping": 2.0},
    "llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


class Directory:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path, self.config, self.tensors = path, json.loads(json.dumps(CONFIG)), block_tensors()

    def files(self, options: str = "") -> DrafterFiles:
        save_file(self.tensors, self.path / "model.safetensors")
        (self.path / "config.json").write_text(json.dumps(self.config))
        return DrafterFiles.open(DrafterSource.parse(f"{self.path}{options}"))

    def network(self) -> DFlash:
        return load_network(self.files(), TARGET)

    def refused(self, message: str, options: str = "") -> None:
        files = self.files(options)
        assert family_of(files) == "dflash"
        with pytest.raises(UsageError, match=message):
            load_network(files, TARGET)


@pytest.fixture
def directory(tmp_path) -> Directory:
    return Directory(tmp_path / "drafter")


@pytest.fixture(scope="module")
def frozen() -> TargetWeights:
    generator = torch.Generator().manual_seed(2)
    embed, head = torch.randn(2, VOCABULARY, WIDTH, generator=generator)
    return TargetWeights(embed, head, TARGET, (0,))


def frequency(pair: int, config: dict[str, Any]) -> float:
    plain = THETA ** (-2 * pair / HEAD_DIM)
    if "rope_scaling" not in config:
        return plain
    turns = 16 * plain / (2 * math.pi)  # within the original context
    part = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
    return plain * part + plain / 4.0 * (1 - part)


def sees(query: int, key: int, layer: int, config: dict[str, Any]) -> bool:
    sliding = "layer_types" in config and layer == 0
    causal = config.get("is_causal", sliding)
    return not (causal and key > query) and not (sliding and abs(query - key) >= 4)


def reference(
    weights: dict[str, torch.Tensor],
    config: dict[str, Any],
    frozen: TargetWeights,
    hidden: list[torch.Tensor],
    root: tuple[int, int],
    late: Sequence[int] = (),
) -> torch.Tensor:
    """Logits of the places after the root (token, position), hidden: per tapped layer [n, E]; late: tokens before."""
    embed = frozen.embed * config.get("input_embedding_scale", 1.0)
    how = partial(sees, config=config), partial(frequency, config=config)
    logits = block_rows(weights, embed, hidden, root, *how, late)[1:] @ frozen.lm_head.T
    logits = logits * config.get("output_multiplier", 1.0)
    cap = config.get("final_logit_softcapping")
    return logits if cap is None else cap * torch.tanh(logits / cap)


def hidden_states(count: int) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {tap: torch.randn(count, WIDTH, generator=generator) for tap in (2, 4, LAST)}


def block_of(state) -> torch.Tensor:
    """All logits of one drafting, along a chain."""
    root = state.root_logits()
    return torch.stack([root, *(state.expand([level], [level - 1])[0] for level in range(BLOCK - 2))])


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("lacking", [0, 3, 5])
def test_agrees_with_the_formulas(kind, lacking, directory, frozen):
    """Through tap and state, from features that came bit by bit; with the newest ones lacking, too."""
    directory.config |= KINDS[kind]
    network = directory.network()
    tap, drafter = DFlashTap(network), DFlashDrafter(network, frozen)
    assert tap.hidden_layers == (2, 4, LAST)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    num_rows = len(tokens) - 1 - lacking
    hidden = hidden_states(num_rows)
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden))
    state = drafter.new_state()
    state.append(tokens[:5])
    state.add_features(0, rows[:3])
    state.root_logits()
    state.append(tokens[5:])
    state.add_features(2, rows[2:])
    late = tokens[num_rows:-1][-LATE_ROWS:]
    expected = reference(directory.tensors, directory.config, frozen, list(hidden.values()), (6, 7), late)
    torch.testing.assert_close(block_of(state), expected, atol=1e-4, rtol=1e-4)


def test_every_path_gets_its_levels_logits(directory, frozen):
    state = DFlashDrafter(directory.network(), frozen).new_state()
    state.append([1, 2])
    levels = block_of(state)
    state.root_logits()
    torch.testing.assert_close(state.expand([3, 4], [ROOT, ROOT]), levels[[1, 1]])
    torch.testing.assert_close(state.expand([5, 6, 7], [0, 0, 1]), levels[[2, 2, 2]])
    torch.testing.assert_close(state.expand([5], [2]), levels[[3]])


def test_below_its_end_stands_another_block(directory, frozen):
    """It drafts what a block of the text with that path does, for all paths in one pass."""
    state = DFlashDrafter(directory.network(), frozen).new_state()
    state.append([1, 2, 6])
    state.add_features(0, torch.ones(2, WIDTH))
    block_of(state)
    ends = state.expand([8, 9], [2, 2])
    for token, end, row in ((8, ends[0], 3), (9, ends[1], 4)):
        longer = DFlashDrafter(directory.network(), frozen).new_state()
        longer.append([1, 2, 6, 0, 1, 2, token])
        longer.add_features(0, torch.ones(2, WIDTH))
        levels = block_of(longer)
        torch.testing.assert_close(end, levels[0])
        torch.testing.assert_close(state.expand([5], [row])[0], levels[1])


@pytest.mark.parametrize("kind", ["plain", "scales"])
def test_a_draft_vocabulary_leaves_the_logits_of_its_tokens_as_they_are(kind, directory, frozen):
    """Behind a cap on logits, too, which must not make a number of -inf."""
    directory.config |= KINDS[kind]
    write_draft_vocab(directory.path, [7, 2, 19])
    blocks = []
    for options in ("", ",draft_vocab=all"):
        directory.files()
        state = load_drafter(f"{directory.path}{options}", frozen).new_state()
        state.append([3, 1, 4])
        state.add_features(0, torch.ones(2, WIDTH))
        blocks.append(block_of(state))
    few, every = blocks
    assert few.isfinite().any(0).nonzero()[:, 0].tolist() == [2, 7, 19]
    torch.testing.assert_close(few[:, [2, 7, 19]], every[:, [2, 7, 19]])
    assert every.isfinite().all()


def test_drafts_a_chain_of_its_block(directory, frozen):
    drafter = DFlashDrafter(directory.network(), frozen)
    assert drafter.plan == TreeShape.chain(BLOCK - 1)
    state = drafter.new_state()
    state.append([1, 2])
    tree = grow_tree(state, drafter.plan)
    assert list(tree.tokens) == block_of(state).argmax(-1).tolist()
    assert tree.parents == (-1, 0, 1, 2)
    assert max(grow_tree(state, TreeShape.chain(9)).depths()) == 9


def test_both_halves_name_the_same_features(directory, frozen):
    files = directory.files()
    tap = FAMILY.tap(files, TARGET, torch.empty(0, dtype=torch.bfloat16))
    drafter = FAMILY.drafter(files, frozen)
    assert tap is not None
    assert tap.info == drafter.tap
    assert drafter.tap.width == WIDTH
    rows = tap.rows(Activations(torch.empty(0), torch.empty(0), hidden_states(2)))
    assert rows.dtype == torch.float32
    directory.config["dflash_config"]["target_layer_ids"] = [1, 2, 5]
    assert DFlashTap(directory.network()).info != tap.info


def test_settings_may_lie_beside_dflash_config(directory):
    directory.config |= directory.config.pop("dflash_config")
    directory.config["architectures"] = ["Anything"]
    sizes = directory.network().sizes
    assert (sizes.mask_token, sizes.taps, sizes.block) == (MASK, (2, 4, LAST), BLOCK)
    del directory.config["block_size"]
    assert directory.network().sizes.block == 16


def test_option_names_the_tapped_layers(directory):
    del directory.config["dflash_config"]["target_layer_ids"]
    directory.refused("target_layer_ids=None: need the target's layers; give target_layers=I-J-")
    assert load_network(directory.files(",target_layers=0-1-6"), TARGET).sizes.taps == (0, 1, LAST)
    directory.refused("width of fc is 48, the target's 32", ",target_layers=0-1")
    directory.refused("taps hidden state 7, the target has 0 to 6", ",target_layers=0-1-7")


def test_a_drafter_of_another_width_is_refused(directory, frozen):
    files = directory.files()
    with pytest.raises(UsageError, match="hidden size is 16, the target's 32"):
        load_network(files, replace(TARGET, hidden=32))
