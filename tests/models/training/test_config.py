"""Settings of a run on chats: the papers' values, changes on top, every wrong key named; and rates."""

from dataclasses import replace

import pytest

from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_models.core.embedded import target_dir
from outrider_models.core.tables import merged, parse_changes
from outrider_models.training.config import make_train_config
from outrider_models.training.core.interfaces import TargetFacts
from outrider_models.training.core.rates import Schedule
from outrider_models.training.core.teacher import target_facts
from outrider_models.training.families import TRAINABLE_FAMILIES
from outrider_models.training.families.moa import _sizes
from outrider_proto.errors import UsageError

LLAMA3_8B = TargetSizes(4096, 32, 32, 8, 128, 128256, 500000.0, 1e-5, 8192, "llama")


@pytest.fixture(scope="module")
def facts():
    return target_facts(target_dir())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "layer_heads"),
    [(32, 8, 128, 32), (9, 3, 64, 8), (14, 2, 64, 8), (28, 4, 128, 16), (40, 8, 128, 32), (24, 8, 128, 16)],
)
def test_moas_layer_attention_has_heads_that_divide_its_width(facts, heads, kv_heads, head_dim, layer_heads):
    """Llama-3-8B, SmolLM2-135M, Qwen2.5-0.5B, 7B and 14B, Llama-3.2-3B."""
    sizes = replace(LLAMA3_8B, heads=heads, kv_heads=kv_heads, head_dim=head_dim, hidden=heads * head_dim)
    target = TargetFacts(target_dir(), sizes, 4 * sizes.hidden)
    drafter = make_train_config("moa", target, {}).drafter
    assert drafter.shape.layer_heads == layer_heads
    made = _sizes(drafter, target).lsa
    assert (made.heads, made.width) == (layer_heads, sizes.packed_kv)


def test_defaults_are_the_papers(facts):
    big = TargetFacts(target_dir(), LLAMA3_8B, 14336)
    moa = make_train_config("moa", big, {})
    shape = moa.drafter.shape  # Table 6
    assert (shape.layer_kv_heads, shape.layer_intermediate) == (16, 6144)
    assert (shape.self_kv_heads, shape.self_intermediate) == (4, 512)
    assert (shape.cross_kv_heads, shape.cross_intermediate) == (8, 7168)
    assert make_train_config("eagle3", big, {}).drafter.target_layers == (2, 16, 29)
    assert make_train_config("eagle3", big, {}).drafter.draft_vocab == 32000


def test_changes_nest_and_the_command_line_wins(facts):
    file = {"drafter": {"blocks": {"longest": 20}}, "length": {"epochs": 2.0}}
    sets = ["drafter.blocks.longest=30", "schedule.decay=cosine", "machine.precision='no'", "length.batch=3"]
    config = make_train_config("moa", facts, merged(file, parse_changes(sets)))
    assert (config.drafter.blocks.shortest, config.drafter.blocks.longest) == (5, 30)
    assert (config.length.epochs, config.length.batch) == (2.0, 3)
    assert config.schedule.decay == "cosine"
    assert config.schedule.peak == TRAINABLE_FAMILIES["moa"].schedule.peak
    layers = make_train_config("eagle3", facts, parse_changes(["drafter.target_layers=[1, 2]"])).drafter.target_layers
    assert layers == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("drafter.color=3", "drafter: color: no such key; choose from shape"),
        ("colors.red=3", "unknown tables colors; there are drafter"),
        ("length=3", "length=3: need a table"),
        ("length.batch=many", 'length: batch="many"'),
        ("length.batch=0", "length: batch=0: input should be greater than 0"),
        ("length.epochs=0", "length: epochs=0: input should be greater than 0"),
        ("validation.new_tokens=1", "new_tokens=1: input should be greater than or equal to 2"),
        ("drafter.tli=-1", "drafter: tli=-1: input should be greater than or equal to 0"),
        ("drafter.losses.feature=-1.0", "drafter: [losses] feature=-1.0: input should be"),
        ("schedule.decay=stairs", "input should be 'linear' or 'cosine'"),
        ("schedule.last=1.0", "last <= peak"),
        ("drafter.shape.self_kv_heads.x=1", "[shape] self_kv_heads={"),
        ("batch", "need TABLE.KEY=VALUE"),
    ],
)
def test_a_wrong_change_is_named(change, message, facts):
    with pytest.raises(UsageError) as error:
        make_train_config("moa", facts, parse_changes([change]))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        *(("hydra", "dropout=1.0"), ("hydra", "noise=-1.0"), ("medusa", "blocks=0"), ("dflash", "gamma=0.0")),
        *(("dspark", "layers=0"), ("hass", "layers=0"), ("hass", "top_k=0"), ("peagle", "mask_token=-2")),
    ],
)
def test_a_size_that_no_drafter_has_is_named(family, change, facts):
    with pytest.raises(UsageError, match=f"^drafter: {change}: input should be "):
        make_train_config(family, facts, parse_changes([f"drafter.{change}"]))


def schedule(**changes):
    values = {"peak": 6e-4, "last": 3e-5, "warmup_updates": 50, "decay": "linear", "decay_epochs": 1.0, "beta1": 0.9,
              "beta2": 0.95, "weight_decay": 0.0, "clip_norm": 1.0}  # fmt: skip
    return Schedule(**values | changes)


def test_moas_rate_rises_falls_over_an_epoch_and_stays():
    rates = [schedule().rate(update, 200, 1000) for update in range(1000)]
    assert rates[0] < rates[49] < rates[50] == 6e-4
    assert rates[125] == pytest.approx((6e-4 + 3e-5) / 2)
    assert rates[200] == rates[999] == pytest.approx(3e-5)
