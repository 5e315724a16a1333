"""Gemma-4 assistants against transformers' own; what is refused; a pair with a tiny Gemma 4."""

import json
from pathlib import Path

import pytest
import torch
from gemma4_forms import BACKBONE, HEAD_DIM, KINDS, VOCABULARY, WINDOW, assistant_tensors, write_assistant
from heads_place import begun, close
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

from outrider_drafters import Activations, Drafter, Tap, TargetWeights, load_drafter, load_tap
from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.families.gemma4.family import AssistantDrafter, AssistantState
from outrider_models.bundling import make_bundle
from outrider_proto.errors import UsageError

TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
LENDERS = (1, 2)  # the first three layers keep K/V, the other three read theirs
KV_HEADS = {"sliding_attention": 2, "full_attention": 1}
LENGTHS = [2, WINDOW, WINDOW + 1, WINDOW + 2, 25]  # of the text before the root


def target_config(**more: object) -> Gemma4TextConfig:
    return Gemma4TextConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": BACKBONE,
            "intermediate_size": 40,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "head_dim": HEAD_DIM["sliding_attention"],
            "global_head_dim": HEAD_DIM["full_attention"],
            "layer_types": TYPES * 2,
            "num_kv_shared_layers": 3,
            "sliding_window": WINDOW,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "final_logit_softcapping": 4.0,
            "max_position_embeddings": 256,
            "initializer_range": 0.1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        | more
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A target and two assistants."""
    directory = tmp_path_factory.mktemp("gemma4")
    torch.manual_seed(0)
    Gemma4ForCausalLM(target_config()).save_pretrained(directory / "target")
    for ordered in (False, True):
        write_assistant(directory / f"ordered-{ordered}", assistant_tensors(ordered=ordered))
    return directory


@pytest.fixture(scope="module")
def weights(place) -> TargetWeights:
    return TargetWeights.load(place / "target")


@pytest.fixture(scope="module")
def model(place) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(place / "target", attn_implementation="eager").eval()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "ordered"])
def ordered(request) -> bool:
    return request.param


@pytest.fixture(scope="module")
def pair(place, weights, ordered) -> tuple[AssistantDrafter, Tap]:
    source = place / f"ordered-{ordered}"
    drafter, tap = load_drafter(source, weights), load_tap(source, place / "target")
    assert isinstance(drafter, AssistantDrafter)
    assert tap.info == drafter.tap
    return drafter, tap


def random_activations(count: int) -> Activations:
    """K/V of six layers, of which a tap is to take the second and third."""
    generator = torch.Generator().manual_seed(5)
    keys, values = (
        [torch.randn(KV_HEADS[kind], count, HEAD_DIM[kind], generator=generator) * 0.5 for kind in TYPES * 2]
        for _ in range(2)
    )
    return Activations(keys, values, {-1: torch.randn(count, BACKBONE, generator=generator)})


def told(drafter: Drafter, tap: Tap, acts: Activations, tokens: list[int], num_features: int) -> AssistantState:
    state = begun(drafter, tokens, tap.rows(acts)[:num_features])
    assert isinstance(state, AssistantState)
    return state


def test_features_are_what_two_layers_keep_and_the_last_hidden_state(pair):
    _, tap = pair
    acts = random_activations(4)
    rows = tap.rows(acts)
    sliding, full = 2 * 2 * HEAD_DIM["sliding_attention"], 2 * HEAD_DIM["full_attention"]
    assert tap.info.width == rows.shape[1] == sliding + full + BACKBONE
    assert tap.info.fingerprint == f"gemma4:1-2:{sliding + full + BACKBONE}"
    close(rows[2, sliding : sliding + HEAD_DIM["full_attention"]], acts.keys[2][0, 2])
    close(rows[:, sliding + full :], acts.hidden[-1])


@pytest.fixture
def reference(monkeypatch) -> None:
    """transformers 5.23 refuses to build an assistant: its rule for shared K/V knows no model that has none itself."""
    modes = Gemma4TextConfig.__dict__.get("kv_sharing_modes")
    if modes is not None:
        alone = property(
            lambda self: (
                ["reuse"] * self.num_hidden_layers
                if self.num_kv_shared_layers == self.num_hidden_layers
                else modes.fget(self)
            )
        )
        monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", alone)


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_chains_are_those_of_transformers(place, model, pair, ordered, length, reference):
    """With the K/V that the target hands over after a prompt."""
    drafter, tap = pair
    assistant = AutoModelForCausalLM.from_pretrained(place / f"ordered-{ordered}").eval()
    text = [(11 * place + 5) % VOCABULARY for place in range(length + 1)]
    out = model(
        torch.tensor([text[:-1]]),
        use_cache=True,
        output_hidden_states=True,
        return_shared_kv_states=True,
        logits_to_keep=torch.tensor([0]),
    )
    shared = {kind: tuple(each.clone() for each in both) for kind, both in out.shared_kv_states.items()}
    lent = dict(zip(LENDERS, (shared["sliding_attention"], shared["full_attention"]), strict=True))
    keys, values = ([lent[layer][which][0] if layer in lent else None for layer in range(6)] for which in (0, 1))
    hidden = out.hidden_states[-1]
    state = told(drafter, tap, Activations(keys, values, {-1: hidden[0]}), text, length)
    token, before, ours = text[-1], hidden[:, -1:], state.root_logits()
    for depth in range(4):
        embedded = model.get_input_embeddings()(torch.tensor([[token]]))
        answer = assistant(
            inputs_embeds=torch.cat([embedded, before], dim=-1),
            position_ids=torch.tensor([[length]]),
            attention_mask=torch.ones(1, length + 1, dtype=torch.long),
            shared_kv_states=shared,
        )
        close(torch.as_tensor(ours), answer.logits[0, 0])
        token, before = int(answer.logits.argmax()), answer.last_hidden_state
        ours = state.expand([token], [depth - 1])[0]


def test_both_forms_of_the_config_are_one(place, weights, tmp_path):
    """The published one, and that which transformers 5.23 writes."""
    by_layer = {"global_head_dim": None, "num_global_key_value_heads": None, "attention_k_eq_v": False}
    by_layer["per_layer_config"] = {"2": {"head_dim": HEAD_DIM["full_attention"], "num_key_value_heads": 1}}
    other = load_drafter(write_assistant(tmp_path / "new", assistant_tensors(), by_layer), weights)
    assert other.network.sizes == load_drafter(place / "ordered-False", weights).network.sizes


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        ({"vocab_size": 50}, {}, r"vocab_size is 50, the target's 48: made for another target"),
        ({}, {"backbone_hidden_size": 64}, r"backbone_hidden_size is 64, the target's 32"),
        ({"hidden_activation": "silu"}, {}, "hidden_activation=silu: need gelu_pytorch_tanh"),
        ({"layer_types": KINDS[:2]}, {}, "need a kind for each of the 3 layers"),
        ({"num_attention_heads": 5}, {}, "32 rows do not make 5 heads"),
        ({"num_key_value_heads": 3}, {}, "3 K/V heads of sliding_attention: must divide num_attention_heads=4"),
        ({}, {"centroid_intermediate_top_k": 40}, "centroid_intermediate_top_k=40: there are 12 centroids"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, {}, "full_attention of type yarn"),
        ("post_projection.weight", None, "not a drafter directory|lacks tensors"),
        ("model.layers.0.self_attn.k_proj.weight", torch.ones(2, 2), "unknown tensors"),
        ("masked_embedding.token_ordering", torch.zeros(48).long(), "need every token of the 48 once"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused(place, weights, tmp_path, text, config, message):
    """Settings of the text part and beside it; and a tensor that is missing or another."""
    tensors = assistant_tensors(ordered=True)
    if isinstance(text, str):
        tensors[text], text, config = config, {}, {}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    source = write_assistant(tmp_path / "odd", kept, text, **config)
    with pytest.raises(UsageError, match=message):
        load_drafter(source, weights)
    if text or config:  # the tap reads no tensors
        with pytest.raises(UsageError, match=message):
            load_tap(source, place / "target")


def test_a_target_that_lends_nothing_is_refused(place, tmp_path):
    sizes = {"hidden_size": BACKBONE, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(tmp_path / "llama")
    with pytest.raises(
        UsageError, match="last sliding_attention layer, which llama has not: made for a Gemma-4 target"
    ):
        load_tap(place / "ordered-False", tmp_path / "llama")


def test_moa_is_refused_for_layers_that_differ(place, tmp_path, golden):
    """Its layer self-attention mixes rows of one width."""
    moa = golden / "moa_tli0" / "drafter"
    tensors_of = json.loads((moa / "config.json").read_text())
    torch.manual_seed(1)
    same = target_config(
        vocab_size=256, hidden_size=64, num_attention_heads=8, head_dim=8, vocab_size_per_layer_input=256
    )
    Gemma4ForCausalLM(same).save_pretrained(tmp_path / "target")
    assert tensors_of["hidden_size"] == 64
    with pytest.raises(UsageError, match="layers of gemma4_text differ in theirs"):
        load_tap(moa, tmp_path / "target")


def test_a_draft_vocabulary_cuts_a_plain_head_and_no_ordered_one(place, weights, tmp_path):
    file = tmp_path / "vocab.json"
    file.write_text(json.dumps({"tokens": list(range(0, 48, 3))}))
    drafter = load_drafter(f"{place / 'ordered-False'},draft_vocab={file}", weights)
    tap = load_tap(place / "ordered-False", place / "target")
    acts = random_activations(9)
    cut = told(drafter, tap, acts, list(range(10)), 9).root_logits()
    whole = told(load_drafter(place / "ordered-False", weights), tap, acts, list(range(10)), 9).root_logits()
    close(torch.as_tensor(cut)[::3], whole[::3])
    assert torch.as_tensor(cut)[1::3].isneginf().all()
    with pytest.raises(UsageError, match="its ordered head chooses its tokens itself"):
        load_drafter(f"{place / 'ordered-True'},draft_vocab={file}", weights)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_a_bundle_has_all_that_an_assistant_needs(place, pair, ordered, tmp_path, kind):
    """Also the settings that stand beside the text part of its config."""
    drafter, tap = pair
    source, out = place / f"ordered-{ordered}", tmp_path / "bundle"
    make_bundle(place / "target", source, kind, out)
    again = load_drafter(out, TargetWeights.load(out))
    assert isinstance(again, AssistantDrafter)
    assert again.network.sizes == drafter.network.sizes
    assert again.tap == drafter.tap
    assert target_fingerprint(out) == target_fingerprint(place / "target")
    acts = random_activations(9)
    mine, theirs = (
        torch.as_tensor(told(each, tap, acts, list(range(10)), 9).root_logits()) for each in (drafter, again)
    )
    if kind == "float32":
        close(mine, theirs)
    else:
        assert torch.corrcoef(torch.stack([mine, theirs]))[0, 1] > 0.9
