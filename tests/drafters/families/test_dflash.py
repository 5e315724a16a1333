"""DFlash as a tap and a state, its paths and what its files may leave unsaid. Its formulas: test_block_layouts.py."""

from dataclasses import replace

import pytest
import torch
from block_forms import FORMS, Place, random_target
from block_formulas import BLOCK, MASK, TARGET, WIDTH
from heads_place import along, begun

from outrider_drafters import write_draft_vocab
from outrider_drafters.contracts.tap import LAST
from outrider_drafters.families.dflash.family import load_network
from outrider_proto.errors import UsageError

FROZEN = random_target()


@pytest.fixture
def place(tmp_path, request) -> Place:
    return Place(tmp_path / "drafter", FORMS[getattr(request, "param", "z-lab")])


@pytest.fixture
def drafter(place):
    return place.load(FROZEN, ",ddtree=0")


def test_below_its_end_stands_another_block(drafter):
    """It drafts what a block of the text with that path does, for all paths in one pass."""
    state = begun(drafter, [1, 2, 6], torch.ones(2, WIDTH))
    along(state, range(BLOCK - 2))
    ends = state.expand([8, 9], [2, 2])
    for token, end, row in ((8, ends[0], 3), (9, ends[1], 4)):
        longer = begun(drafter, [1, 2, 6, 0, 1, 2, token], torch.ones(2, WIDTH))
        levels = along(longer, range(BLOCK - 2))
        torch.testing.assert_close(end, levels[0])
        torch.testing.assert_close(state.expand([5], [row])[0], levels[1])


@pytest.mark.parametrize("place", ["z-lab, scales"], indirect=True)
def test_a_draft_vocabulary_leaves_the_logits_of_its_tokens_as_they_are(place):
    """Behind a cap on logits, too, which must not make a number of -inf."""
    write_draft_vocab(place.path, [7, 2, 19])
    blocks = []
    for options in ("", ",draft_vocab=all"):
        state = begun(place.load(FROZEN, options), [3, 1, 4], torch.ones(2, WIDTH))
        blocks.append(along(state, range(BLOCK - 2)))
    few, every = blocks
    assert few.isfinite().any(0).nonzero()[:, 0].tolist() == [2, 7, 19]
    torch.testing.assert_close(few[:, [2, 7, 19]], every[:, [2, 7, 19]])
    assert every.isfinite().all()


def test_settings_may_lie_beside_dflash_config(place):
    place.config |= place.config.pop("dflash_config")
    place.config["architectures"] = ["Anything"]
    sizes = load_network(place.files(), TARGET).sizes
    assert (sizes.mask_token, sizes.taps, sizes.block) == (MASK, (2, 4, LAST), BLOCK)
    del place.config["block_size"]
    assert load_network(place.files(), TARGET).sizes.block == 16


def test_option_names_the_tapped_layers(place):
    del place.config["dflash_config"]["target_layer_ids"]
    assert load_network(place.files(",target_layers=0-1-6"), TARGET).sizes.taps == (0, 1, LAST)


def test_a_drafter_of_another_width_is_refused(place):
    with pytest.raises(UsageError, match="hidden size is 16, the target's 32"):
        load_network(place.files(), replace(TARGET, hidden=32))
