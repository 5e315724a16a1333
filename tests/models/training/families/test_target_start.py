"""A network that starts as the target's last layers guesses like the target before it has learned anything."""

import json
from dataclasses import replace

import pytest
import torch

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import held_out
from outrider_models.training.core.rates import Length
from outrider_models.training.core.shapes import LayerShape
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.families import target_start, trainable_family
from outrider_models.training.families.eagle3_start import start_from_target, start_request
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
    ("name", "layers"),
    [
        ("eagle2", 2),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (("eagle2", 1), ("hass", 1), ("hass", 2))),
    ],
)
def test_it_guesses_at_texts_that_it_did_not_see(name, layers, teacher, batches):
    hits, loss = scores(teacher, started(teacher, batches[:4], name, layers=layers), batches[4:])
    untrained_hits, untrained_loss = scores(teacher, started(teacher, (), name, init="random"), batches[4:])
    assert hits > 0.25 > 0.05 > untrained_hits
    assert loss < untrained_loss / 2


@torch.no_grad()
def test_an_eagle3_head_guesses_and_goes_on_from_its_own_output(teacher, batches):
    model = started(teacher, batches[:4], "eagle3")
    hits, loss = scores(teacher, model, batches[4:])
    untrained_hits, untrained_loss = scores(teacher, started(teacher, (), "eagle3", init="random"), batches[4:])
    assert hits > 0.25 > 0.05 > untrained_hits
    assert loss < untrained_loss / 2
    later = later_hits(teacher, model, batches[4])
    # Without the second fit it is right at 5 %.
    assert later > 0.12


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


@torch.no_grad()
def test_an_eagle3_head_takes_over_the_targets_biases(teacher, batches):
    model = started(teacher, (), "eagle3", init="random")
    request = start_request(model.network.sizes.target_layers)
    examples = [(batch, teacher.run(batch.tokens, request)) for batch in batches[:4]]
    found = []
    for bias in (0.0, 2.0):
        plain = examples[0][1].last_layers
        biased = LastLayers(replace(plain.shape, qkv_bias=True), plain.windows).requires_grad_(False)
        tensors = biased.state_dict()
        biased.load_state_dict({name: torch.full_like(tensor, bias) for name, tensor in tensors.items()})
        biased.load_state_dict(plain.state_dict(), strict=False)
        network = model.network
        start_from_target(network, [(batch, replace(output, last_layers=biased)) for batch, output in examples])
        output = examples[0][1]
        taps = torch.cat([output.hidden[layer] for layer in network.sizes.target_layers], dim=-1)
        features = network.midlayer.hidden_norm(network.fuse(taps[:, :-1]))
        embeds = torch.nn.functional.embedding(examples[0][0].tokens[:, 1:], output.embed)
        pairs = torch.cat((network.midlayer.input_layernorm(embeds), features), dim=-1)
        found.append(network.midlayer.self_attn.v_proj(pairs)[examples[0][0].loss_mask[:, 1:]])
    added = (found[1] - found[0]).mean(0)
    copied = added[network.sizes.block.heads // 3 * network.sizes.block.head_dim :]
    torch.testing.assert_close(copied, torch.full_like(copied, 2.0), rtol=0.05, atol=0)


@torch.no_grad()
def test_the_blocks_are_the_targets_where_their_input_is_right(teacher, batches):
    # All states of a text have one size here, as the start takes them to have.
    model = started(teacher, batches[:4], layers=2)
    batch = batches[4]
    output = teacher.run(batch.tokens, target_start.start_request(2))
    last, entering = output.last_layers, output.hidden[-3]
    size = last.before_norm(entering).pow(2).mean(-1, keepdim=True).sqrt()
    states = last.norm.weight * entering / size
    for block in model.network.blocks:
        states = block.self_attend(states, block.shape.rope(torch.arange(states.shape[1])), None)
    likeness = torch.cosine_similarity(states, output.hidden[-1], dim=-1)[batch.loss_mask]
    assert likeness.mean() > 0.9


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
