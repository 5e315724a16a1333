"""Draft vocabularies: their file, and what every family drafts with one."""

import json
from pathlib import Path

import pytest
import torch
from heads_place import begun

from outrider_drafters import Drafter, TargetWeights, TreeShape, grow_tree, load_drafter
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, read_draft_vocab, write_draft_vocab
from outrider_proto.errors import UsageError

# Of every family with a head that is loaded from files, besides DFlash (test_dflash.py): drafter and target.
FAMILIES = {
    "moa": ("moa_tli0/drafter", "target_tiny"),
    "eagle2": ("eagle2_llama/drafter", "target_l4"),
    "eagle3": ("eagle3_llama/drafter", "target_l8"),
    "hydra": ("hydra_mlp/drafter", "target_vicuna_tiny"),
    "medusa": ("medusa_v01/drafter", "target_vicuna_tiny"),
    "independent": ("target_tiny", "target_tiny"),
    "independent tied": ("target_tiny,tie_to_target=true", "target_tiny"),
}
TARGET = "target_l4"  # of `eagle`
TOKENS = [9, 200, 3, 77, 100, 4, 33, 150]  # most frequent first


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_draft_vocab(tmp_path, TOKENS)
    return tmp_path


@pytest.fixture
def eagle(directory: Path, golden: Path) -> str:
    """A drafter's directory with a draft vocabulary of its own."""
    for file in (golden / "eagle2_llama/drafter").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return str(directory)


def root_logits(drafter: Drafter) -> torch.Tensor:
    features = torch.randn(2, drafter.tap.width, generator=torch.Generator().manual_seed(0))
    return begun(drafter, [3, 4, 5], features).root_logits()


def test_a_written_file_reads_back_in_its_order(directory):
    assert read_draft_vocab(directory / DRAFT_VOCAB, vocab=256) == tuple(TOKENS)


@pytest.mark.parametrize("tokens", [None, [], [1, 1], [-1], [10], [True], ["1"], {"1": 2}])
def test_a_list_that_is_no_draft_vocabulary_is_refused(tmp_path, tokens):
    path = tmp_path / DRAFT_VOCAB
    path.write_text(json.dumps({"tokens": tokens}))

    with pytest.raises(UsageError, match="tokens: need"):
        read_draft_vocab(path, vocab=10)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_outside_is_never_drafted_and_the_others_have_their_logits(family, golden, directory):
    name, target_name = FAMILIES[family]
    target = TargetWeights.load(golden / target_name)
    whole = root_logits(load_drafter(f"{golden}/{name}", target))
    drafter = load_drafter(f"{golden}/{name},draft_vocab={directory / DRAFT_VOCAB}", target)

    logits = root_logits(drafter)

    drafted = logits.isfinite().nonzero()[:, 0].tolist()
    assert drafted
    assert set(drafted) == {token for token in TOKENS if whole[token] > -torch.inf}
    torch.testing.assert_close(logits[drafted], whole[drafted])
    state = begun(drafter, [3, 4, 5], torch.ones(2, drafter.tap.width))
    assert set(grow_tree(state, TreeShape(breadth=4, levels=3, budget=16)).tokens) <= set(TOKENS)


@pytest.mark.parametrize(("option", "tokens"), [("", TOKENS), (",draft_vocab=3", TOKENS[:3])])
def test_a_directory_with_a_file_drafts_its_tokens_or_the_first_of_them(frozen, eagle, option, tokens):
    logits = root_logits(load_drafter(eagle + option, frozen))

    assert logits.isfinite().nonzero()[:, 0].tolist() == sorted(tokens)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("0", "at least 1"),
        ("9", f"its {DRAFT_VOCAB} has 8 tokens"),
        ("/nowhere/vocab.json", "/nowhere/vocab.json: cannot be read"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(frozen, eagle, option, message):
    with pytest.raises(UsageError, match=message):
        load_drafter(f"{eagle},draft_vocab={option}", frozen)
