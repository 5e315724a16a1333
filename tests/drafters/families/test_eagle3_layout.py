"""What of an EAGLE-3 directory is refused, and by which name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider_drafters import LastHiddenTap, TargetWeights, load_drafter, load_tap
from outrider_drafters.families.eagle3.drafter import Eagle3Drafter
from outrider_drafters.families.eagle3.tap_layers import chosen_layers, default_layers
from outrider_proto.errors import UsageError

OPTIONAL = {"t2d", "lm_head.weight", "d2t"}


class Directory:
    """A copy of the golden head to spoil."""

    def __init__(self, path: Path, golden: Path) -> None:
        shutil.copytree(golden / "eagle3_llama" / "drafter", path, copy_function=shutil.copyfile)
        self.path, self.target = path, golden / "target_l8"
        self.tensors = load_file(path / "model.safetensors")
        self.config = json.loads((path / "config.json").read_text())

    def save(self) -> None:
        save_file(self.tensors, self.path / "model.safetensors")
        (self.path / "config.json").write_text(json.dumps(self.config))

    def load(self, options: str = "") -> Eagle3Drafter:
        self.save()
        drafter = load_drafter(f"{self.path}{options}", TargetWeights.load(self.target))
        assert isinstance(drafter, Eagle3Drafter)
        return drafter

    def refused(self, message: str, options: str = "") -> None:
        self.save()
        with pytest.raises(UsageError, match=message) as refusal:
            load_drafter(f"{self.path}{options}", TargetWeights.load(self.target))
        assert str(self.path) in str(refusal.value) or "config.json" in str(refusal.value)
        with pytest.raises(UsageError, match=message):
            load_tap(f"{self.path}{options}", self.target)


@pytest.fixture
def head(tmp_path, golden) -> Directory:
    return Directory(tmp_path / "head", golden)


def test_every_missing_tensor_is_named(head):
    whole = head.tensors
    for name in set(whole) - OPTIONAL:
        head.tensors = {other: tensor for other, tensor in whole.items() if other != name}
        head.refused(f"lacks tensors {name}")


def test_a_draft_vocabulary_needs_its_map(head):
    del head.tensors["d2t"]
    head.refused("lacks tensors d2t: lm_head.weight has 128 rows")


def test_a_draft_vocabulary_needs_its_own_head(head):
    del head.tensors["lm_head.weight"]
    head.refused(r"lacks tensors lm_head\.weight")


def test_unknown_tensor_is_named(head):
    head.tensors["midlayer.mlp.extra.weight"] = torch.zeros(2)
    head.refused(r"holds unknown tensors midlayer\.mlp\.extra\.weight")


def test_a_later_layer_must_be_whole(head):
    head.tensors |= {name: torch.zeros(shape) for name, shape in later_layer("layers.1.").items()}
    head.load()
    for name in later_layer("layers.1."):
        tensor = head.tensors.pop(name)
        head.refused(rf"lacks tensors {name}")
        head.tensors[name] = tensor[..., :5].clone()
        head.refused(rf"tensor {name} has shape")
        head.tensors[name] = tensor


def test_layers_are_numbered_without_a_gap(head):
    head.tensors |= {name: torch.zeros(shape) for name, shape in later_layer("layers.2.").items()}
    head.refused(r"lacks tensors layers\.1\.input_layernorm\.weight")


def test_a_later_layer_takes_no_pairs(head):
    head.tensors |= {name: torch.zeros(shape) for name, shape in later_layer("layers.1.").items()}
    head.tensors["layers.1.hidden_norm.weight"] = torch.ones(64)
    head.refused(r"holds unknown tensors layers\.1\.hidden_norm\.weight")


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ({"num_hidden_layers": 3}, "holds 1 layers: config.json says num_hidden_layers=3"),
        ({"sliding_window": 8, "layer_types": []}, "layer_types has 0 entries: layer 0 has none"),
        ({"sliding_window": 8, "layer_types": ["chunked_attention"]}, "layer 0 is chunked_attention: need full"),
        ({"sliding_window": 0, "layer_types": ["sliding_attention"]}, "sliding_window=0: need a whole number"),
    ],
)
def test_speculators_layers_are_as_its_config_says(head, nested, message):
    head.config = {"transformer_layer_config": head.config | nested, "draft_vocab_size": 128}
    head.refused(message)


def test_a_setting_of_speculators_that_is_not_understood_is_named(head):
    head.config = {"transformer_layer_config": head.config, "draft_vocab_size": 128, "norm_after_fc": False}
    head.load()
    head.config["norm_after_fc"] = True
    head.refused("norm_after_fc=True is not understood: need one of draft_vocab_size")


def later_layer(layer: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{layer}{x}_layernorm.weight": (64,) for x in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{x}_proj.weight": (32 if x in "kv" else 64, 64) for x in "qkvo"}
    mlp = {"gate": (128, 64), "up": (128, 64), "down": (64, 128)}
    return shapes | {f"{layer}mlp.{part}_proj.weight": shape for part, shape in mlp.items()}


def test_the_same_tensor_under_two_names_is_refused(head):
    head.tensors["layers.0.hidden_norm.weight"] = torch.ones(64)
    head.refused(r"tensors layers\.0\.hidden_norm\.weight and midlayer\.hidden_norm\.weight are the same one")


def test_misshapen_tensors_are_named(head):
    head.tensors["norm.weight"] = torch.zeros(3)
    head.refused(r"tensor norm\.weight has shape \[3\]: need \[64\]")


def test_a_layer_of_plain_width_is_refused(head):
    for name in "qkv":
        full = f"midlayer.self_attn.{name}_proj.weight"
        head.tensors[full] = head.tensors[full][:, :64].contiguous()
    head.refused("q_proj has 64 columns: need 128")


def test_heads_that_do_not_divide_are_refused(head):
    head.config["num_attention_heads"] = 7
    head.refused("64 rows of q_proj and 32 of k_proj do not make 7 heads")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", 300, "vocab_size is 300, the target's 256"),
        ("target_hidden_size", 32, "target_hidden_size is 32, the target's 64"),
        ("rope_scaling", {"rope_type": "longrope"}, "rope_scaling of type longrope"),
        ("partial_rotary_factor", 0.5, r"partial_rotary_factor=0\.5"),
        ("hidden_act", "gelu", "hidden_act=gelu: need silu"),
        ("norm_before_fc", True, r"lacks tensors input_norm\.weight"),
        ("fc_norm", True, r"lacks tensors fc_norm\.0\.weight, fc_norm\.1\.weight, fc_norm\.2\.weight"),
        ("eagle_aux_hidden_state_layer_ids", [2, 4], "takes 3 hidden states, but the layers are 2-4; name 3 of"),
        ("eagle_aux_hidden_state_layer_ids", [2, 4, 9], "2-4-9: 9 is not within 0 to 8"),
        ("eagle_aux_hidden_state_layer_ids", "2", "need a list of layers"),
    ],
)
def test_configurations_of_other_heads_are_refused(head, key, value, message):
    head.config[key] = value
    head.refused(message)


def test_an_fc_of_another_width_is_refused(head):
    head.tensors["fc.weight"] = torch.zeros(64, 190)
    head.refused(r"fc\.weight has 190 columns: need a multiple of 64")


def test_more_layers_than_the_default_must_be_named(head):
    head.tensors["fc.weight"] = torch.zeros(64, 256)
    head.refused("takes 4 hidden states, but the layers are 2-4-5; name 4 of the target")
    assert head.load(",target_layers=1-2-4-5").tap.width == 64


def test_two_kinds_of_norms_before_fc_are_refused(head):
    head.tensors |= {f"fc_norm.{i}.weight": torch.ones(64) for i in range(3)} | {"input_norm.weight": torch.ones(192)}
    head.refused("one or the other")


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (torch.arange(128) * 2, "d2t leads to token 0 to 381: need 0 to 255"),  # ids in place of offsets
        (torch.zeros(128) - 1, "d2t leads to token -1"),
        (torch.where(torch.arange(128) == 5, 1, 0), "must rise"),
        (torch.zeros(128), "t2d and d2t contradict each other"),
    ],
)
def test_broken_maps_are_refused(head, offset, message):
    head.tensors["d2t"] = offset.to(torch.int64)
    head.refused(message)


def test_a_membership_of_another_vocabulary_is_refused(head):
    head.tensors["t2d"] = torch.ones(255, dtype=torch.bool)
    head.refused(r"t2d has shape \[255\]: need \[256\]")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_maps_of_other_types_and_without_membership(head, dtype):
    del head.tensors["t2d"]
    ids = head.load()._draft_tokens
    head.tensors["d2t"] = head.tensors["d2t"].to(dtype)
    assert torch.equal(head.load()._draft_tokens, ids)


def test_whole_vocabularies_may_carry_idle_maps(head):
    head.tensors["lm_head.weight"] = torch.randn(256, 64)
    head.tensors |= {"d2t": torch.zeros(256, dtype=torch.int64), "t2d": torch.zeros(256, dtype=torch.bool)}
    assert head.load()._draft_tokens is None


def test_what_trainers_keep_of_the_target_is_left_out(head):
    head.tensors |= {"verifier_norm.weight": torch.ones(64), "verifier_lm_head.weight": torch.ones(128, 64)}
    head.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    head.load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (",embedding=own", r"lacks tensors embed_tokens\.weight"),
        (",target_layers=2-4", "takes 3 hidden states, but the layers are 2-4"),
        (",family=moa", "a drafter of family eagle3, not moa"),
    ],
)
def test_options_that_do_not_fit_are_refused(head, options, message):
    head.refused(message, options)


def test_an_embedding_of_another_vocabulary_is_refused(head):
    head.tensors["embed_tokens.weight"] = torch.zeros(250, 64)
    head.refused(r"rows of embed_tokens\.weight is 250, the target's 256")


@pytest.mark.parametrize("options", ["", ",embedding=own"])
def test_an_embedding_of_another_width_is_refused(head, options):
    head.tensors["embed_tokens.weight"] = torch.zeros(256, 48)
    head.refused(r"embed_tokens\.weight has 48 columns: need 64", options)


def test_without_fc_it_reads_what_eagle2_reads(head):
    head.config["eagle_config"] = {"use_aux_hidden_state": False}
    drafter = head.load()  # its fc is idle, as in vLLM
    tap = load_tap(head.path, head.target)
    assert isinstance(tap, LastHiddenTap)
    assert tap.info == drafter.tap


def test_fingerprint_tells_layers_and_weights_apart(head):
    first = head.load().tap
    assert head.load(",target_layers=2-4-6").tap != first
    head.tensors["lm_head.weight"] += 1
    assert head.load().tap == first  # the client's affair
    head.tensors["fc.weight"] += 1
    assert head.load().tap != first


@pytest.mark.parametrize(
    ("layers", "default"), [(32, (2, 16, 29)), (8, (2, 4, 5)), (6, (2, 3)), (5, (2,)), (4, (1, 2)), (3, (0, 1, 2))]
)
def test_default_layers_collapse_in_small_targets(layers, default):
    assert default_layers(layers) == default
    assert chosen_layers({}, None, layers, len(default)) == default


def test_a_list_of_the_right_length_is_taken_with_its_repetitions():
    listed = {"eagle_aux_hidden_state_layer_ids": [2, 2, 1]}
    assert chosen_layers(listed, None, 4, 3) == (2, 2, 1)
    assert chosen_layers(listed, None, 4, 2) == (1, 2)
    assert chosen_layers({}, (3, 1), 4, 2) == (3, 1)
    assert chosen_layers({"target_layers": [3, 1]}, None, 4, 2) == (3, 1)  # GGUF's, and what export writes
