"""P-EAGLE in training: against what the exported files draft, depth by depth, and against speculators' own pass.

The reference takes one anchor after the other, gives a fresh draft state the text up to its token, and sums the
cross-entropy of every depth that the reply holds.
"""

import pytest
import torch
import torch.nn.functional as F
from heads_place import along, begun
from safetensors.torch import load_file
from trained_model import exported, trained_model

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.families.peagle.family import load_network
from outrider_models.training.core.interfaces import Batch
from outrider_models.training.families.peagle import DepthSettings, sample_masks
from outrider_proto.errors import UsageError

LENGTH = 16
ALL = DepthSettings(count=4, ratio=1.0, least=0.0)
SOME = DepthSettings(count=5, ratio=0.6, least=0.3)
MASK = torch.tensor([[False] * 3 + [True] * 5 + [False] * 2 + [True] * 6])  # two replies


def model_of(teacher, **changes):
    return trained_model(teacher, "peagle", **({"layers": 2, "draft_vocab": 300, "depths": ALL} | changes))


@pytest.fixture
def batch(teacher):
    tokens = torch.randint(5, teacher.facts.sizes.vocab, (1, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:], MASK)


def drafted(teacher, model, directory, tokens):
    """Logits [depths, V] behind each row t: the text up to token t + 1, and features up to t."""
    drafter, rows = exported(teacher, model, directory, tokens)
    for t in range(len(tokens) - 1):
        state = begun(drafter, tokens[: t + 2].tolist(), rows[: t + 1])
        yield t, along(state, [1] * (drafter.num_drafts - 1))


CASES = [
    {},
    {"layers": 1},
    {"own_embedding": False},
    {"draft_vocab": 1 << 30},
    {"target_layers": (1, 0)},
    {"depths": DepthSettings(count=2, ratio=1.0, least=0.0)},
    {"depths": SOME},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_the_loss_is_that_of_drafting_at_every_row(changes, teacher, batch, tmp_path):
    model = model_of(teacher, **changes)
    depths, tokens = changes.get("depths", ALL), batch.tokens[0]
    with torch.no_grad():
        torch.manual_seed(7)
        output = model(batch, teacher.run(batch.tokens, model.teacher_request, batch.loss_mask), 0.0)
        wanted = teacher.model(batch.tokens).logits[0]
    mask = MASK[0].tolist()
    if depths is SOME:
        torch.manual_seed(7)
        kept = set(zip(*(part[0].tolist() for part in sample_masks(MASK[:, 1:], depths)), strict=True))
    else:
        kept = {
            (t, depth)
            for t in range(LENGTH - 1)
            for depth in range(1, depths.count)
            if t + 1 + depth < LENGTH and all(mask[t + 2 : t + 2 + depth])
        }
    total, first = 0.0, 0
    for t, made in drafted(teacher, model, tmp_path, tokens):
        for depth, logits in enumerate(made):
            if not ((t, depth) in kept if depth else mask[t + 1]):
                continue
            first += depth == 0
            aim, can = wanted[t + 1 + depth], logits > -torch.inf
            if can[aim.argmax()]:
                total -= float((aim[can].softmax(-1) * logits[can].log_softmax(-1)).sum())
    assert len(kept) > 5
    assert len(output.main) == first
    assert float(output.total) == pytest.approx(total, rel=2e-3)


def test_the_training_pass_is_that_of_speculators(golden):
    """Its rounds hold the five rows of masks behind a root, and were made with those of every other anchor."""
    directory = golden / "peagle_speculators"
    target, arrays = TargetWeights.load(golden / "target_l8"), load_file(directory / "golden.safetensors")
    network = load_network(DrafterFiles.open(DrafterSource(str(directory / "drafter"))), target.sizes).float()
    tokens = arrays["sequence_ids"]
    states = torch.cat([arrays[f"tap{place}"] for place in range(3)], dim=-1)[:, : tokens.shape[1] - 1]
    count, slots = tokens.shape[1] - 1, arrays["round0_logits"].shape[1]
    anchors = torch.arange(count).repeat_interleave(slots - 1)[None]
    depths = torch.arange(1, slots).repeat(count)[None]
    embed = network.embed_tokens.weight
    with torch.no_grad():
        hidden = network.forward_depths(
            F.embedding(tokens[:, 1:], embed), states, embed[network.mask_token], anchors, depths
        )
        logits = network.lm_head(hidden)[0]
    for number in range(3):
        t = int(arrays[f"round{number}_start"]) - 1
        own = torch.cat((logits[t, None], logits[count:][anchors[0] == t]))
        torch.testing.assert_close(own, arrays[f"round{number}_logits"][0], atol=3e-4, rtol=1e-4)


def test_depths_keep_their_share_evenly_and_never_a_mask_without_those_before_it():
    can = torch.tensor([[False] * 2 + [True] * 20, [True] * 10 + [False] * 12, [False] * 22])
    torch.manual_seed(0)
    seen = torch.zeros(2, 22)
    for _ in range(300):
        anchors, depths = sample_masks(can, SOME)
        assert (anchors[2] == -1).all()
        for row, n in ((0, 20), (1, 10)):
            kept = {(a, d) for a, d in zip(anchors[row].tolist(), depths[row].tolist(), strict=True) if a >= 0}
            assert len(kept) == int((anchors[row] >= 0).sum())
            assert all(can[row, a + d] and (d == 1 or (a, d - 1) in kept) for a, d in kept)
            sizes = [sum(d == depth for _, d in kept) for depth in range(1, SOME.count)]
            assert sizes[0] == int(n * 0.6)
            for depth, size in enumerate(sizes[1:], start=2):
                ends = sum(not (a + depth < 22 and can[row, a + depth]) for a, d in kept if d == depth - 1)
                assert size == min(int(n * max(0.6**depth, 0.3)), sizes[depth - 2] - ends)
            for a, d in kept:
                seen[row, a + d] += d == 1
    assert ((seen[0, 2:] / 300 - 0.6).abs() < 0.12).all()
    assert not seen[1, 0]  # it would stand behind no row
    assert ((seen[1, 1:10] / 300 - 6 / 9).abs() < 0.12).all()
    assert not torch.equal(sample_masks(can, SOME)[0], sample_masks(can, SOME)[0])


def test_the_embedding_starts_as_the_target_s_and_weights_come_with_their_mask(teacher, batch, tmp_path):
    model = model_of(teacher, mask_token=9)
    model.init_from_examples([(batch, teacher.run(batch.tokens, model.start_request))])
    assert torch.equal(model.network.embed_tokens.weight, teacher.embed)
    assert model_of(teacher, own_embedding=False).start_request is None
    model.write(tmp_path)
    other = model_of(teacher)
    assert other.network.mask_token == 0
    other.load_weights(DrafterFiles.open(DrafterSource(str(tmp_path))))
    assert other.network.mask_token == 9
    assert torch.equal(other.network.mask_hidden, model.network.mask_hidden)
    with pytest.raises(UsageError, match="holds unknown tensors embed_tokens"):
        model_of(teacher, own_embedding=False).load_weights(DrafterFiles.open(DrafterSource(str(tmp_path))))
