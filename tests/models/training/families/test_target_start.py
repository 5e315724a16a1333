"""A network that starts as the target's last layers guesses like the target before it has learned anything."""

import json
from dataclasses import replace

import pytest
import torch

from outrider_models.core.embedded import target_dir
from outrider_models.corpus import generate
from outrider_models.training.core.rates import Length
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.families import trainable_family
from outrider_models.training.families.target_start import start_request
from outrider_proto.errors import UsageError


@pytest.fixture(scope="module")
def teacher():
    return Teacher.load(target_dir(), torch.float32)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """Texts to start from, and other ones."""
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    samples = [sample for family in ("chat", "qa", "summary") for sample in generate(family, "train", 5, 24)]
    chats = [[{"role": m.role, "content": m.content} for m in sample.conversation()] for sample in samples]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    settings = ChatSettings(max_length=256, held_out=0, seed=0, questions=False)
    texts = ChatSource.read(path, load_chat_tokenizer(target_dir()), settings, Length(12, 1)).updates(0)
    return [make_batch(some, torch.device("cpu")) for some in texts]


def started(teacher, batches, name="eagle2", **changes):
    family = trainable_family(name)
    settings = replace(family.defaults(teacher.facts), **{"init": "target", "noise": 0.0, **changes})
    torch.manual_seed(0)
    model = family.make_drafter(settings, teacher.facts, lambda: torch.zeros(teacher.facts.sizes.vocab))
    if settings.init == "target":
        request = start_request(settings.layers)
        model.init_from_examples((batch, teacher.run(batch.tokens, request)) for batch in batches)
    return model.eval()


@torch.no_grad()
def scores(teacher, model, batches):
    """Return the share of right first guesses, and the mean cross-entropy."""
    made = [model(batch, teacher.run(batch.tokens, model.teacher_request), 0.0) for batch in batches]
    return torch.cat([one.hits for one in made]).float().mean(), torch.cat([one.main for one in made]).mean()


@pytest.mark.parametrize("name", ["eagle2", "hass"])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_guesses_at_texts_that_it_did_not_see(name, layers, teacher, batches):
    hits, loss = scores(teacher, started(teacher, batches[:4], name, layers=layers), batches[4:])
    untrained_hits, untrained_loss = scores(teacher, started(teacher, (), name, init="random"), batches[4:])
    assert hits > 0.25 > 0.05 > untrained_hits
    assert loss < untrained_loss / 2


@torch.no_grad()
def test_the_blocks_are_the_targets_where_their_input_is_right(teacher, batches):
    # All states of a text have one size here, as the start takes them to have.
    model = started(teacher, batches[:4], layers=2)
    batch = batches[4]
    output = teacher.run(batch.tokens, start_request(2))
    last, entering = output.last_layers, output.hidden[-3]
    size = last.before_norm(entering).pow(2).mean(-1, keepdim=True).sqrt()
    states = last.norm.weight * entering / size
    for block in model.network.blocks:
        states = block.self_attend(states, block.shape.rope(torch.arange(states.shape[1])), None)
    likeness = torch.cosine_similarity(states, output.hidden[-1], dim=-1)[batch.loss_mask]
    assert likeness.mean() > 0.9


def test_blocks_of_another_shape_are_refused(teacher, batches):
    shape = replace(trainable_family("eagle2").defaults(teacher.facts).shape, intermediate=100)
    with pytest.raises(UsageError, match="init=target: its layers have mlp="):
        started(teacher, batches[:1], shape=shape)


def test_too_little_text_is_refused(teacher, batches):
    with pytest.raises(UsageError, match=r"init=target: \d+ tokens of text: fitting fc takes \d+: need more chats"):
        started(teacher, [replace(batches[0], tokens=batches[0].tokens[:1], labels=batches[0].labels[:1])])


def test_more_layers_than_the_target_has_are_refused(teacher):
    with pytest.raises(
        UsageError, match=f"layers=99: the target, as which it starts, has {teacher.facts.sizes.layers}"
    ):
        started(teacher, (), layers=99)
