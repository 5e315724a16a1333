"""What of an EAGLE-3 directory is optional, and which layers its tap reads. What is refused: test_refusals.py."""

import pytest
import torch
from spoiled import SpoiledHead

from outrider_drafters.families.eagle3.layout import chosen_layers, default_layers


@pytest.fixture
def head(tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "head", golden, "eagle3")


def test_whole_vocabularies_may_carry_idle_maps(head):
    head.tensors["lm_head.weight"] = torch.randn(256, 64)
    head.tensors |= {"d2t": torch.zeros(256, dtype=torch.int64), "t2d": torch.zeros(256, dtype=torch.bool)}
    assert head.load().head.tokens is None


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
