"""DFlash and DSpark in training, against what the exported files draft, and DeepSpec's loss put together slot by slot.

The reference takes one anchor after the other, gives a fresh draft state the text before it, drafts along the true
tokens, and computes every term from whole distributions.
"""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from heads_place import along, begun
from trained_model import exported, trained_model

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.dflash.family import LATE_ROWS
from outrider_drafters.load import load_drafter
from outrider_models.training.core.block_losses import BlockLosses
from outrider_models.training.core.interfaces import Batch
from outrider_models.training.families import dflash, trainable_family
from outrider_models.training.families.dflash import default_taps, sample_anchors
from outrider_models.training.families.dspark import MarkovSettings

LENGTH, GAMMA = 14, 3.0
SMALL = {
    "dflash": {"layers": 2, "block_size": 5},
    "dspark": {"layers": 2, "block_size": 4, "markov": MarkovSettings(rank=6, kind="vanilla")},
}
EVERY_TERM = BlockLosses(text=0.2, divergence=0.3, variation=0.7)


def model_of(teacher, name, **changes):
    return trained_model(teacher, name, **(SMALL[name] | changes))


def make_batch(teacher, mask):
    tokens = torch.randint(5, teacher.facts.sizes.vocab, (1, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:], torch.tensor([mask]))


def two_replies(teacher):
    """One text with two replies, so that a block may reach the end of one."""
    return make_batch(teacher, [False] * 3 + [True] * 4 + [False] * 2 + [True] * 5)


def drafted(teacher, model, directory, tokens, anchor, depth, lacking=0):
    """Logits [V] of the slots of the block at an anchor, and the state and drafter that made them."""
    drafter, rows = exported(teacher, model, directory, tokens)
    state = begun(drafter, tokens[: anchor + 1].tolist(), rows[: anchor - lacking])
    return drafter, state, along(state, tokens[anchor + 1 : anchor + depth].tolist())


def reference_loss(teacher, model, batch, directory, weights, confidence):
    """The sum over all anchors of the mean over slots, weighed by exp(-k / gamma)."""
    slots = model.network.sizes.num_drafts
    decay = [math.exp(-slot / GAMMA) for slot in range(slots)]
    with torch.no_grad():
        wanted = teacher.model(batch.tokens).logits[0]
    mask, tokens = batch.loss_mask[0], batch.tokens[0]
    total, anchors = 0.0, []
    for anchor in range(1, len(tokens)):
        if not (mask[anchor - 1] and mask[anchor]):
            continue
        anchors.append(anchor)
        depth = 0
        while depth < slots and anchor + depth < len(tokens) and mask[anchor + depth]:
            depth += 1
        drafter, state, made = drafted(teacher, model, directory, tokens, anchor, depth)
        for slot, logits in enumerate(made):
            can, place = logits > -torch.inf, anchor + slot
            q, p = logits[can].softmax(-1), wanted[place][can].softmax(-1)
            covered = bool(can[wanted[place].argmax()])
            apart = float((q - p).abs().sum()) if covered else 0.0
            loss = weights.variation * apart
            if covered:
                loss -= weights.divergence * float((p * q.log()).sum())
            if can[batch.labels[0, place]]:
                loss -= weights.text * float(logits.log_softmax(-1)[batch.labels[0, place]])
            if confidence:
                said = drafter.confidence(state._hidden_of([slot - 1]), drafter.before([int(tokens[place])]))
                loss += confidence * float(F.binary_cross_entropy(said, torch.tensor([covered - apart / 2])))
            total += decay[slot] / sum(decay) * loss
    return total, anchors


CASES = [
    ("dflash", {}, 0.0),
    ("dflash", {"draft_vocab": 300}, 0.0),
    ("dflash", {"layers": 1, "block_size": 3}, 0.0),
    ("dspark", {}, 1.0),
    ("dspark", {"draft_vocab": 300}, 0.5),
    ("dspark", {"markov": MarkovSettings(6, "gated")}, 1.0),
    ("dspark", {"markov": MarkovSettings(6, "rnn")}, 1.0),
    ("dspark", {"markov": MarkovSettings(0, "vanilla")}, 1.0),
    ("dspark", {}, 0.0),
]


@pytest.mark.parametrize(("name", "changes", "confidence"), CASES)
def test_the_loss_is_that_of_drafting_at_every_anchor(name, changes, confidence, teacher, tmp_path):
    more = {"confidence": confidence} if name == "dspark" else {}
    model = model_of(teacher, name, gamma=GAMMA, losses=EVERY_TERM, **more, **changes)
    batch = two_replies(teacher)
    with torch.no_grad():
        output = model(batch, teacher.run(batch.tokens, model.teacher_request, batch.loss_mask), 0.0)
    total, anchors = reference_loss(teacher, model, batch, tmp_path, EVERY_TERM, confidence)
    assert anchors == [4, 5, 6, 10, 11, 12, 13]
    assert len(output.main) == len(anchors)
    assert float(output.total) == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("lacking", [0, 3, LATE_ROWS + 1])
@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_loaded_checkpoint_drafts_the_logits_of_the_network_in_training(
    name, lacking, teacher, tmp_path, monkeypatch
):
    """Of blocks, too, that lack the newest features, more of them than they have rows for."""
    monkeypatch.setattr(dflash, "sample_lacking", lambda anchors, most: torch.clamp(anchors, max=lacking))
    model = model_of(teacher, name, late=lacking)
    batch = make_batch(teacher, [False] * 4 + [True] * 10)
    target = teacher.run(batch.tokens, model.teacher_request, batch.loss_mask)
    with torch.no_grad():
        blocks = model._blocks(batch, target)
        logits = blocks.states @ target.lm_head.T
        if name == "dspark":
            whole = replace(blocks, trained=torch.ones_like(blocks.trained))
            _, z = model._markov(batch, whole)
            logits = logits + (z @ model.network.markov_head.markov_w2.weight.T).view_as(logits)
    for number in (0, 3):
        anchor = int(blocks.anchors[0, number])
        depth = int(blocks.trained[0, number].sum())
        _, _, made = drafted(teacher, model, tmp_path, batch.tokens[0], anchor, depth, min(lacking, anchor))
        torch.testing.assert_close(made, logits[0, number, :depth], atol=1e-4, rtol=1e-4)


def test_fewer_anchors_are_drawn_evenly_and_stand_for_all():
    mask = torch.tensor([[False] * 4 + [True] * 21, [False] * 20 + [True] * 5, [False] * 25])
    torch.manual_seed(0)
    counts = torch.zeros(3, 25)
    for _ in range(400):
        anchors, stands_for = sample_anchors(mask, 8)
        assert stands_for.sum(1).tolist() == [20.0, 4.0, 0.0]
        for row in range(3):
            drawn = anchors[row][stands_for[row] > 0]
            assert len(set(drawn.tolist())) == len(drawn) == min(8, [20, 4, 0][row])
            counts[row, drawn] += 1
    assert not counts[0, :5].any()
    assert ((counts[0, 5:] / 400 - 8 / 20).abs() < 0.1).all()
    assert (counts[1, 21:] == 400).all()
    assert not counts[2].any()


def test_the_mask_is_the_token_that_replies_lack_or_the_one_given(teacher, tmp_path):
    family = trainable_family("dflash")
    counts = torch.ones(teacher.facts.sizes.vocab)
    counts[[9, 12]] = 0
    made = family.make_drafter(family.defaults(teacher.facts), teacher.facts, lambda: counts)
    assert made.network.sizes.mask_token == 9
    given = family.make_drafter(replace(family.defaults(teacher.facts), mask_token=3), teacher.facts, lambda: counts)
    assert given.network.sizes.mask_token == 3
    made.write(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dflash_config"]["mask_token_id"] == 9
    # Weights come with their mask.
    given.load_weights(DrafterFiles.open(DrafterSource(str(tmp_path))))
    assert given.network.sizes.mask_token == 9


def test_a_draft_vocabulary_of_dspark_is_that_of_speculators(teacher, tmp_path):
    model = model_of(teacher, "dspark", draft_vocab=300)
    model.write(tmp_path)
    assert not (tmp_path / "draft_vocab.json").exists()
    drafter = load_drafter(tmp_path, teacher.target_weights())
    assert torch.equal(drafter.head.tokens, model.draft_tokens)
    torch.testing.assert_close(drafter.network.lm_head.weight, teacher.lm_head[model.draft_tokens].bfloat16().float())
    other = model_of(teacher, "dspark", draft_vocab=300)
    other.draft_tokens = torch.arange(300)
    other.load_weights(DrafterFiles.open(DrafterSource(str(tmp_path))))
    assert torch.equal(other.draft_tokens, model.draft_tokens)


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(36, (2, 10, 18, 26, 34)), (8, (2, 3, 4, 5, 6)), (30, (2, 8, 15, 22, 28)), (2, (1,)), (1, (0,))],
)
def test_the_default_taps_are_the_paper_s(layers, taps):
    """Qwen3-4B's are published: outputs 1, 9, 17, 25 and 33 of 36 layers."""
    assert default_taps(layers) == taps
