"""What of an EAGLE-3 directory is optional, and which layers its tap reads. What is refused: test_refusals.py."""

import pytest
import torch
from spoiled import SpoiledHead

from outrider_drafters import LastHiddenTap, load_tap
from outrider_drafters.families.eagle3.tap_layers import chosen_layers, default_layers


@pytest.fixture
def head(tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "head", golden, "eagle3")


def test_whole_vocabularies_may_carry_idle_maps(head):
    head.tensors["lm_head.weight"] = torch.randn(256, 64)
    head.tensors |= {"d2t": torch.zeros(256, dtype=torch.int64), "t2d": torch.zeros(256, dtype=torch.bool)}
    assert head.load()._draft_tokens is None


def test_without_fc_it_reads_what_eagle2_reads(head):
    head.config["eagle_config"] = {"use_aux_hidden_state": False}
    drafter = head.load()  # its fc is idle, as in vLLM
    tap = load_tap(head.path, head.target)
    assert isinstance(tap, LastHiddenTap)
    assert tap.info == drafter.tap


def test_fingerprint_tells_layers_and_weights_apart(head):
    first = head.load().tap
    assert head.load(",target_layers=2-4-6").tap != first
    head.tensors["lm_head.weight"] += 1
    assert head.load().tap == first  # the client's affair
    head.tensors["fc.weight"] += 1
    assert head.load().tap != first


@pytest.mark.parametrize(
    ("layers", "default"), [(32, (2, 16, 29)), (8, (2, 4, 5)), (6, (2, 3)), (5, (2,)), (4, (1, 2)), (3, (0, 1, 2))]
)
def test_default_layers_collapse_in_small_targets(layers, default):
    assert default_layers(layers) == default
    assert chosen_layers({}, None, layers, len(default)) == default


def test_a_list_of_the_right_length_is_taken_with_its_repetitions():
    listed = {"eagle_aux_hidden_state_layer_ids": [2, 2, 1]}
    assert chosen_layers(listed, None, 4, 3) == (2, 2, 1)
    assert chosen_layers(listed, None, 4, 2) == (1, 2)
    assert chosen_layers({}, (3, 1), 4, 2) == (3, 1)
    assert chosen_layers({"target_layers": [3, 1]}, None, 4, 2) == (3, 1)  # GGUF's, and what export writes
