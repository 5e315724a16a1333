"""Losses of every family, against the drafter itself: what training sees of a position is what drafting makes of it.

The slow reference exports the drafter, gives a fresh state each position's past, drafts along the true tokens, and puts
the paper's loss together from the logits of each level.
"""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from heads_place import along, begun
from trained_model import exported, trained_model

from outrider_drafters.families.shared_layout import STEPS
from outrider_drafters.load import load_drafter
from outrider_models.training.core import block_losses, losses
from outrider_models.training.core.interfaces import Batch
from outrider_models.training.core.losses import HeadDecay, Losses
from outrider_models.training.families import TRAINABLE_FAMILIES
from outrider_models.training.families.dspark import MarkovSettings
from outrider_models.training.families.peagle import DepthSettings
from outrider_proto.errors import UsageError

LENGTH, PROMPT = 14, 5
SMALL = {
    "eagle2": {"noise": 0.0, "losses": Losses(divergence=0.1, feature=0.0, in_units=False)},
    "hass": {"noise": 0.0, "losses": Losses(divergence=0.1, feature=0.0, in_units=False)},
    "eagle3": {"draft_vocab": 300},
    "medusa": {"blocks": 2, "tied": False},
    "hydra": {"dropout": 0.0, "blocks": 2},
    "dflash": {"layers": 2, "block_size": 5},
    "dspark": {"layers": 2, "block_size": 4, "markov": MarkovSettings(rank=6, kind="vanilla")},
    "peagle": {"layers": 2, "draft_vocab": 300, "depths": DepthSettings(count=4, ratio=1.0, least=0.0)},
}


def model_of(teacher, name, **changes):
    return trained_model(teacher, name, **(SMALL.get(name, {}) | changes))


def make_batch(vocab, rows=1):
    tokens = torch.randint(5, vocab, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    loss_mask = (torch.arange(LENGTH) >= PROMPT).expand(rows, -1)
    return Batch(tokens[:, :-1], tokens[:, 1:], loss_mask)


def levels(teacher, model, directory, tokens, ahead, depth):
    """Logits [V] of every level that follows position t + ahead, t by t, drafted along the true tokens."""
    drafter, rows = exported(teacher, model, directory, tokens)
    for t in range(len(tokens) - ahead):
        state = begun(drafter, tokens[: t + 1 + ahead].tolist(), None if rows is None else rows[: t + 1])
        yield t, along(state, tokens[t + ahead + 1 :][: depth - 1].tolist())


def soft(logits, wanted):
    """Cross-entropy over what can be drafted, the wanted distribution over the same tokens; none where its likeliest
    token cannot be."""
    can = logits > -torch.inf
    if not can[wanted.argmax()]:
        return torch.zeros(())
    return -(wanted[can].softmax(-1) * logits[can].log_softmax(-1)).sum()


def hass_loss(logits, wanted):
    best = wanted.softmax(-1).topk(10)
    return 0.1 * soft(logits, wanted) - (best.values * logits.log_softmax(-1)[best.indices]).sum()


DEPTHS = {  # how far ahead of t the root is, how many levels, what each weighs against the one before
    "eagle2": (1, 1, 1.0),
    "hass": (1, 3, 1.0),
    "eagle3": (1, 7, 0.8),
    "medusa": (1, 5, 0.8),
    "hydra": (1, 4, 1.0),
    "independent": (0, 1, 1.0),
}


CASES = [
    *((name, {}) for name in DEPTHS),
    ("eagle2", {"layers": 2}),
    ("hass", {"layers": 3}),
    ("medusa", {"distill": True}),
    ("hydra", {"distill": False}),
    ("hydra", {"distill": False, "prefix": False, "blocks": 1}),
    ("independent", {"init": "target"}),
]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_the_loss_is_that_of_drafting_along_the_text(name, changes, teacher, tmp_path):
    ahead, depth, decay = DEPTHS[name]
    model = model_of(teacher, name, **changes)
    batch = make_batch(teacher.facts.sizes.vocab)
    with torch.no_grad():
        loss_output = model(batch, teacher.run(batch.tokens, model.teacher_request), 0.0)
        wanted = teacher.model(batch.tokens).logits[0]
    total, first = 0.0, 0
    for t, made in levels(teacher, model, tmp_path, batch.tokens[0], ahead, depth):
        for level, logits in enumerate(made):
            place = t + ahead + level  # whose successor is predicted
            if not batch.loss_mask[0, place]:
                continue
            first += level == 0
            match name:
                case "medusa" | "hydra" if not model._settings.distill:
                    loss = F.cross_entropy(logits, batch.labels[0, place])
                case "hass":
                    loss = hass_loss(logits, wanted[place])
                case "eagle2":
                    loss = 0.1 * soft(logits, wanted[place])
                case _:
                    loss = soft(logits, wanted[place])
            total += float(decay**level * loss)
    assert len(loss_output.main) == first
    assert float(loss_output.total) == pytest.approx(total, rel=2e-3)


def slope(model, batch, output, direction):
    """Return the slope of the loss along a direction of parameters, by autograd and by differences."""

    def moved(by):
        with torch.no_grad():
            for parameter, way in zip(model.parameters(), direction, strict=True):
                parameter.add_(way, alpha=by)
        return model(batch, output, 0.0).total

    total = moved(0.0)
    gradients = torch.autograd.grad(total, list(model.parameters()))
    told = sum(float((gradient * way).sum()) for gradient, way in zip(gradients, direction, strict=True))
    size = 1e-3
    above, below = float(moved(size).detach()), float(moved(-2 * size).detach())
    return told, (above - below) / (2 * size)


@pytest.mark.parametrize("detached", [True, False])
def test_a_step_of_hass_learns_for_those_after_it_unless_detached(detached, teacher):
    model = model_of(teacher, "hass", detached=detached)
    batch = make_batch(teacher.facts.sizes.vocab)
    torch.manual_seed(0)
    direction = [torch.randn_like(parameter) for parameter in model.parameters()]
    told, found = slope(model, batch, teacher.run(batch.tokens, model.teacher_request), direction)
    assert (told == pytest.approx(found, rel=0.02)) is not detached


VARIANTS = {
    "": {},
    "without LSA": {"lsa": False},
    "tli": {"tli": 1},
    "stairs": {"staircase": True},
    "mlp": {"prefix": False},
    "own": {"own_output": True},
}


@pytest.mark.parametrize(
    "name", [*TRAINABLE_FAMILIES, "moa without LSA", "moa tli", "moa stairs", "hydra mlp", "hydra own", "medusa own"]
)
def test_everything_that_learns_gets_a_gradient_and_padding_changes_nothing(name, teacher):
    kind, _, variant = name.partition(" ")
    model = model_of(teacher, kind, **VARIANTS[variant])
    batch = make_batch(teacher.facts.sizes.vocab, rows=2)
    totals = []
    for padding in (0, 3):
        loss_mask, *tokens = (F.pad(x, (0, padding)) for x in (batch.loss_mask, batch.tokens, batch.labels))
        torch.manual_seed(0)
        loss_output = model(Batch(*tokens, loss_mask), teacher.run(tokens[0], model.teacher_request), 0.0)
        totals.append(float(loss_output.total.detach()))
    loss_output.total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    assert totals[0] == pytest.approx(totals[1], rel=1e-4)
    assert not any(p.requires_grad for p in teacher.model.parameters())


def test_moa_weighs_both_features_equally_where_target_layers_follow(teacher):
    batch = make_batch(teacher.facts.sizes.vocab)
    only_features = Losses(divergence=0.0, feature=1.0, in_units=False)
    model = model_of(teacher, "moa", tli=1, losses=only_features)
    output = teacher.run(batch.tokens, model.teacher_request)
    torch.manual_seed(0)
    total = model(batch, output, 0.0).total
    torch.manual_seed(0)
    final, entering = model._drafted(batch, output, 0.0)
    distance = F.smooth_l1_loss(final, output.hidden[-1], reduction="none").mean(-1)[batch.loss_mask]
    torch.testing.assert_close(total, (0.5 * distance + 0.5 * entering).sum())
    layer = teacher.model(batch.tokens, output_hidden_states=True).hidden_states[-2]
    assert torch.equal(output.hidden[-2], layer)


@pytest.mark.parametrize(
    ("name", "changes", "tolerant"),
    [
        *(("hass", {"steps": steps}, steps == 8) for steps in (1, 8)),
        *(("eagle3", {"steps": HeadDecay(steps, 0.8)}, steps == 7) for steps in (3, 7)),
        *((name, {"late": late, "block_size": 5}, late == 6) for name in ("dflash", "dspark") for late in (0, 4, 6)),
    ],
)
def test_what_lacked_more_than_a_verdict_in_training_is_stale_tolerant(name, changes, tolerant, teacher, tmp_path):
    model_of(teacher, name, **changes).export(tmp_path)
    assert load_drafter(tmp_path, teacher.target_weights()).stale_tolerant is tolerant
    if name == "eagle3":
        config = json.loads((tmp_path / "config.json").read_text())
        del config[STEPS]  # a published head, which says nothing
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert load_drafter(tmp_path, teacher.target_weights()).stale_tolerant


def compare_plainly(hidden, weight, bias, labels, numbers, scales=None):
    """`losses.compare` with all logits at once and autograd."""
    logits, soft = F.linear(hidden, weight, bias).float(), labels.of(numbers)
    loss = -(soft.weights * logits.log_softmax(-1)).sum(-1)
    drafted, tokens = logits.argmax(-1), labels.draft_tokens
    hits = (drafted if tokens is None else tokens[drafted]) == soft.likeliest
    return losses.Compared((loss if scales is None else loss * scales).sum(), loss.detach(), hits)


def compare_slots_plainly(hidden, z, w2, scales, labels, numbers):
    """`block_losses.compare_slots` with all logits at once and autograd."""
    logits = (F.linear(hidden, labels.lm_head) + F.linear(z, w2)).float()
    wanted, distribution, likeliest = labels.of(numbers)
    covered = distribution.sum(-1)
    apart = (logits.softmax(-1) - distribution).abs().sum(-1) * covered
    loss = labels.weights.variation * apart - (wanted * logits.log_softmax(-1)).sum(-1)
    own = loss.detach(), labels.hits(logits, likeliest), (covered - apart / 2).detach()
    return block_losses.SlotsCompared((loss * scales).sum(), *own)


PLAINLY = dict.fromkeys(("dflash", "dspark"), ("compare_slots", compare_slots_plainly))


@pytest.mark.parametrize("vocab", [0, 300])
@pytest.mark.parametrize("name", TRAINABLE_FAMILIES)
def test_the_loss_and_its_gradients_are_those_of_all_logits_at_once(name, vocab, teacher, monkeypatch):
    model = model_of(teacher, name, draft_vocab=vocab or (400 if name in ("eagle3", "peagle") else 0))
    batch = make_batch(teacher.facts.sizes.vocab, rows=2)
    target = teacher.run(batch.tokens, model.teacher_request, batch.loss_mask)
    found = []
    for plain in (False, True):
        monkeypatch.setattr(losses, "MAX_LOGITS", 2000)
        monkeypatch.setattr(losses, "MAX_HELD", 5000)
        monkeypatch.setattr(losses, "MAX_SHARED", 0 if plain else 1 << 26)
        if plain:
            fast, slow = PLAINLY.get(name, ("compare", compare_plainly))
            module = "medusa" if name == "hydra" else name  # which has the loss of all heads
            monkeypatch.setattr(f"outrider_models.training.families.{module}.{fast}", slow)
        torch.manual_seed(0)
        model.zero_grad()
        output = model(batch, target, 0.0)
        output.total.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((output.total.detach(), output.main, output.hits, *gradients))
    assert len(found[0]) > 3
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_hydra_s_noise_is_neftune_s_and_of_training_alone(teacher):
    """Each row's is uniform within 75 / sqrt(its tokens x width), padding not counted."""
    model = model_of(teacher, "hydra", distill=False, noise=75.0)
    batch = make_batch(teacher.facts.sizes.vocab, rows=2)
    labels = batch.labels.clone()
    labels[1, 9:] = -100  # padding
    batch = Batch(batch.tokens, labels, batch.loss_mask & (labels != -100))
    target, plain = teacher.run(batch.tokens, model.teacher_request), model_of(teacher, "hydra", distill=False)
    torch.manual_seed(4)
    given = model.train()(batch, target, 0.0)
    torch.manual_seed(4)
    noise = torch.rand_like(target.hidden[-1]) * 2 - 1
    noisy = target.hidden[-1].clone()
    for row, tokens in enumerate((LENGTH, 9)):
        noisy[row] += noise[row] * 75 / (tokens * teacher.facts.sizes.hidden) ** 0.5
    assert float(given.total) == pytest.approx(
        float(plain(batch, replace(target, hidden={-1: noisy}), 0.0).total), rel=1e-5
    )
    clean = float(plain(batch, target, 0.0).total)
    assert float(model.eval()(batch, target, 0.0).total) == pytest.approx(clean, rel=1e-6)
    assert float(given.total) != pytest.approx(clean, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("eagle3", {"target_layers": (9,)}, "target_layers: 9"),
        ("moa", {"tli": 5}, "tli=5"),
        ("independent", {"heads": 3}, "multiple of the next"),
        ("dflash", {"block_size": 1}, "block_size=1"),
        ("dspark", {"mask_token": 1 << 30}, "mask_token="),
        ("peagle", {"target_layers": (1, 1)}, "at least one, none twice"),
    ],
)
def test_a_wrong_size_is_named(name, changes, message, teacher):
    with pytest.raises(UsageError, match=message):
        model_of(teacher, name, **changes)
