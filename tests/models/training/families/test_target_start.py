"""A network that starts as the target's last layers guesses like the target before it has learned anything."""

import json
from dataclasses import replace

import pytest
import torch

from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import held_out
from outrider_models.training.core.rates import Length
from outrider_models.training.core.shapes import LayerShape
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.families import trainable_family
from outrider_proto.errors import UsageError


@pytest.fixture(scope="module")
def teacher():
    return Teacher.load(target_dir(), torch.float32)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """Texts to start from, and other ones."""
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    samples = [sample for family in ("chat", "qa", "summary") for sample in held_out(family, 24)]
    chats = [[{"role": m.role, "content": m.content} for m in sample.conversation()] for sample in samples]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    settings = ChatSettings(max_length=256, held_out=0, seed=0, limit=0, questions=False)
    texts = ChatSource.read(path, load_chat_tokenizer(target_dir()), settings, Length(12, 1)).updates(0)
    return [make_batch(some, torch.device("cpu")) for some in texts]


def started(teacher, batches, name="eagle2", **changes):
    family = trainable_family(name)
    settings = family.defaults(teacher.facts)
    sizes = teacher.facts.sizes
    if name == "eagle3":
        like_target = {"shape": replace(settings.shape, kv_heads=sizes.heads), "rope_theta": sizes.rope_theta}
    else:
        like_target = {"noise": 0.0}
    settings = replace(settings, **{"init": "target", **like_target, **changes})
    torch.manual_seed(0)
    model = family.make_drafter(settings, teacher.facts, lambda: torch.zeros(teacher.facts.sizes.vocab))
    model.init_from_lm_head(teacher.lm_head)
    if settings.init == "target":
        request = model.start_request
        model.init_from_examples((batch, teacher.run(batch.tokens, request)) for batch in batches)
    return model.eval()


@torch.no_grad()
def scores(teacher, model, batches):
    """Return the share of right first guesses, and the mean cross-entropy."""
    made = [model(batch, teacher.run(batch.tokens, model.teacher_request), 0.0) for batch in batches]
    return torch.cat([one.hits for one in made]).float().mean(), torch.cat([one.main for one in made]).mean()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("eagle3", {}),
        ("eagle2", {"layers": 2}),
        *(pytest.param(*rest, marks=pytest.mark.slow)
          for rest in (("eagle2", {"layers": 1}), ("hass", {"layers": 1}), ("hass", {"layers": 2}))),
    ],
)  # fmt: skip
@torch.no_grad()
def test_it_guesses_at_texts_that_it_did_not_see(name, changes, teacher, batches):
    model = started(teacher, batches[:4], name, **changes)
    hits, loss = scores(teacher, model, batches[4:])
    untrained_hits, untrained_loss = scores(teacher, started(teacher, (), name, init="random"), batches[4:])
    assert hits > 0.25 > 0.05 > untrained_hits
    assert loss < untrained_loss / 2
    if name == "eagle3":  # goes on from its own output: without the second fit it is right at 5 %
        assert later_hits(teacher, model, batches[4]) > 0.12


def later_hits(teacher, model, batch):
    """Return the share of right guesses from an EAGLE-3 head's own first output."""
    output = teacher.run(batch.tokens, model.teacher_request)
    taps = torch.cat([output.hidden[layer] for layer in model.network.sizes.target_layers], dim=-1)
    embeds = torch.nn.functional.embedding(batch.tokens[:, 1:], output.embed)
    drafted = model.network.forward_train(embeds, model.network.fuse(taps[:, :-1]), 2)[1].normed[:, :-2]
    right = (drafted @ model.network.lm_head.weight.T).argmax(-1) == (output.hidden[-1] @ output.lm_head.T)[
        :, 2:-1
    ].argmax(-1)
    return right[batch.loss_mask[:, 2:-1]].float().mean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 5.0}, "init=target: its layers have rope_theta=10000.0, the drafter's rope_theta=5.0"),
        ({"shape": LayerShape(kv_heads=2, intermediate=512)}, "init=target: kv_heads=2: need 8, one for each head"),
    ],
)
def test_an_eagle3_head_of_another_shape_is_refused(changes, message, teacher, batches):
    with pytest.raises(UsageError, match=message):
        started(teacher, batches[:1], "eagle3", **changes)


def test_too_little_text_is_refused(teacher, batches):
    with pytest.raises(UsageError, match=r"init=target: \d+ tokens of text: fitting fc takes \d+: need more chats"):
        started(teacher, [replace(batches[0], tokens=batches[0].tokens[:1], labels=batches[0].labels[:1])])
