"""What of a published head is refused, whatever its family, and by which name."""

import re

import pytest
import torch
from spoiled import GOLDEN, GONE, HEADS, NESTED, SpoiledHead

from outrider_drafters.checkpoints.drafter_files import TRAINING
from outrider_proto.errors import UsageError

WITH_LAYERS = [name for name in HEADS if name not in ("medusa", "hydra")]
OPTIONAL = {"fc.bias", "embed_tokens.weight", "t2d", "lm_head.weight", "d2t", "confidence_head.proj.bias"}
OPTIONAL |= {"fusion_fc.bias"}


@pytest.fixture
def head(request, tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "head", golden, request.param)


@pytest.mark.parametrize("head", HEADS, indirect=True)
def test_unchanged_they_load(head):
    head.load()


@pytest.mark.parametrize("head", WITH_LAYERS, indirect=True)
def test_every_missing_tensor_is_named(head):
    whole = head.tensors
    for name in whole.keys() - OPTIONAL:
        head.tensors = {other: tensor for other, tensor in whole.items() if other != name}
        known_by = {"transformer.": "layers.0.", "fusion_fc.": "fc."}
        for ours, theirs in known_by.items():
            name = name.replace(ours, theirs)
        other = name.replace("layers.0.", "midlayer.")
        # Without one of these it is a head of another kind, to which something else is unknown.
        unknown = "|holds unknown" if re.search("[qk]_norm|hidden_norm", name) else ""
        head.refused(rf"lacks tensors (.*({re.escape(name)}|{re.escape(other)})|d2t){unknown}")


def one_of(head: SpoiledHead, ending: str) -> str:
    return next(name for name in head.tensors if name.endswith(ending))


NUMBERS = "self_attn.o_proj.weight"
SPOILED_TENSORS = {
    "a value that is no number": (NUMBERS, lambda t: t.index_fill(0, torch.tensor([0]), torch.nan), "no numbers"),
    "a vector for a matrix": ("q_proj.weight", lambda t: t[0], r"has shape \[\d+\]: need a matrix"),
    "a norm of another width": ("post_attention_layernorm.weight", lambda t: t[:3], r"has shape \[3\]: need \[\d+\]"),
    "whole numbers": ("mlp.down_proj.weight", lambda t: t.long(), "is of type torch.int64"),
    "bytes": ("mlp.down_proj.weight", lambda t: t.to(torch.float8_e4m3fn), "is of type torch.float8.* unquantized"),
}


@pytest.mark.parametrize("head", WITH_LAYERS, indirect=True)
@pytest.mark.parametrize("fault", SPOILED_TENSORS)
def test_a_tensor_that_does_not_fit_is_named(head, fault):
    ending, spoil, message = SPOILED_TENSORS[fault]
    name = one_of(head, ending)
    head.tensors[name] = spoil(head.tensors[name])
    known_by = name.replace("transformer.", "layers.0.")
    head.refused(f"tensor ({known_by}|{known_by.replace('layers.0', 'midlayer')}) .*{message}")


@pytest.mark.parametrize("head", HEADS, indirect=True)
def test_an_unknown_tensor_is_named(head):
    head.tensors["norms.extra"] = torch.zeros(2)
    head.refused(r"holds unknown tensors norms\.extra")


OTHER_LAYERS = [
    ({"num_attention_heads": 7}, "do not make 7 heads"),
    ({"num_attention_heads": GONE}, "num_attention_heads=None: need a whole number"),
    ({"num_attention_heads": "eight"}, "config.json: num_attention_heads=eight"),
    ({"vocab_size": 300}, "vocab_size is 300, the target's 256"),
    ({"hidden_act": "gelu"}, "hidden_act=gelu: need silu"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: need 1"),
    ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor=0.25: need 1"),
    ({"embedding_multiplier": 12}, "embedding_multiplier=12: need 1"),
    ({"residual_multiplier": 0.22}, "residual_multiplier=0.22: need 1"),
    ({"attention_multiplier": 0.0078125}, "attention_multiplier=0.0078125: need 0."),
    ({"rope_scaling": {"rope_type": "longrope"}, "rope_parameters": None}, "rope_scaling of type longrope"),
]


@pytest.mark.parametrize("head", WITH_LAYERS, indirect=True)
@pytest.mark.parametrize(("changes", "message"), OTHER_LAYERS, ids=str)
def test_layers_of_another_kind_are_refused(head, changes, message):
    head.llama.update(changes)
    if GONE in changes.values():
        del head.llama["num_attention_heads"]
    head.refused(re.escape(message))


@pytest.mark.parametrize("head", ["moa", "eagle2", "eagle3"], indirect=True)
def test_a_base_by_kind_of_layer_is_refused(head):
    head.config["rope_parameters"] = {"full_attention": {"rope_theta": 1e6}}
    head.refused(r"differs by layers \(full_attention\)")


ANOTHER_TARGET = "made for another target"
REST = (64,)
PROPOSING = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 0}]}}
REFUSED = {  # of a head: tensors, settings and options that are changed, and what the refusal says
    "moa": [
        ({}, {"disable_LSA": True}, "", r"says disable_LSA, but it holds Ekv2E\.bias, Ekv2E\.weight, layer"),
        ({}, {"target_layer_inference": -1}, "", "target_layer_inference=-1: need 0 or more"),
        ({f"cross_attention.self_attn.{x}_proj.weight": (64, 128) if x == "o" else (128, 64) for x in "qkvo"}, {}, "",
         "values of a head: 8 in self_attention, 16 in cross_attention: need the same"),
    ],
    "eagle2": [
        ({"layers.1.mlp.up_proj.weight": (2,)}, {}, "", r"unknown tensors layers\.1\.mlp\.up_proj\.weight"),
        ({"embed_tokens.weight": (300, 64)}, {}, "", r"rows of embed_tokens\.weight is 300, the target's 256"),
        ({"layers.0.self_attn.q_proj.bias": REST}, {}, "", r"lacks tensors layers\.0\.self_attn\.k_proj\.bias"),
        *(({}, {"rope_scaling": {"type": kind, "factor": 2.0}}, "", f"rope_scaling of type {kind}")
          for kind in ("dynamic", "llama3", "yarn")),
    ],
    "eagle2, speculators": [
        ({}, {"fusion_bias": False}, "", r"fusion_bias=False: it holds fc\.bias"),
        ({}, {"fusion_norm": True}, "", "fusion_norm=True is not understood: need one of fusion_bias, layernorms"),
        ({}, {"transformer_layer_architecture": "Gemma2DecoderLayer"}, "", "=Gemma2DecoderLayer: need one of auto, L"),
    ],
    "eagle3": [
        ({"d2t": GONE}, {}, "", r"lacks tensors d2t: lm_head\.weight has 128 rows"),
        ({"lm_head.weight": GONE}, {}, "", r"lacks tensors lm_head\.weight"),
        ({"layers.1.mlp.up_proj.weight": (128, 64)}, {}, "", r"lacks tensors layers\.1\.input_layernorm\.weight"),
        ({"layers.0.hidden_norm.weight": REST}, {}, "", r"layers\.0\.hidden_norm\.weight and midlayer\.hidden_norm"),
        ({f"midlayer.self_attn.{x}_proj.weight": (32 if x != "q" else 64, 64) for x in "qkv"}, {}, "",
         "q_proj has 64 columns: need 128"),
        ({"fc.weight": (64, 190)}, {}, "", r"fc\.weight has 190 columns: need a multiple of 64"),
        ({"fc.weight": (64, 256)}, {}, "", "takes 4 hidden states, but the layers are 2-4-5; name 4 of the target"),
        ({f"fc_norm.{i}.weight": REST for i in range(3)} | {"input_norm.weight": (192,)}, {}, "", "one or the other"),
        ({"t2d": torch.ones(255, dtype=torch.bool)}, {}, "", r"t2d has shape \[255\]: need \[256\]"),
        ({"d2t": torch.arange(128) * 2}, {}, "", "d2t leads to token 0 to 381: need 0 to 255"),  # ids, not offsets
        ({"d2t": torch.where(torch.arange(128) == 5, 1, 0)}, {}, "", "must rise"),
        ({"embed_tokens.weight": (250, 64)}, {}, "", r"rows of embed_tokens\.weight is 250, the target's 256"),
        ({}, {"target_hidden_size": 32}, "", "target_hidden_size is 32, the target's 64"),
        ({}, {"norm_before_fc": True}, "", r"lacks tensors input_norm\.weight"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 4]}, "", "takes 3 hidden states, but the layers are 2-4; name 3"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "", "2-4-9: 9 is not within 0 to 8"),
        ({}, {"eagle_aux_hidden_state_layer_ids": "2"}, "", "need a list of layers"),
        ({}, {}, ",embedding=own", r"lacks tensors embed_tokens\.weight"),
        *(({}, {key: value}, "", rf"config\.json: {key}={value}: need a positive number")
          for key, value in (("rope_theta", "1e6"), ("rms_norm_eps", -1), ("rope_theta", True))),
        ({}, {"rope_parameters": ["yarn"]}, "", "rope_parameters=.*: need an object"),
        ({}, {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": "x"}}, "", "beta_fast=x: need a positive"),
    ],
    "eagle3, speculators": [({}, {"norm_after_fc": True}, "", "norm_after_fc=True is not understood: need one of dra")],
    "dflash": [
        ({}, {"num_target_layers": 6}, "", "num_target_layers is 6, the target's 8"),
        ({}, {"layer_types": ["full_attention"]}, "", "layer_types has 1 entries: layer 1 has none"),
        ({}, {"layer_types": ["full_attention", "chunked_attention"]}, "", "layer 1 is chunked_attention: need full_a"),
        ({}, {"num_hidden_layers": 4}, "", r"holds 3 layers: config\.json says num_hidden_layers=4"),
        ({}, {"sample_from_anchor": 1}, "", "sample_from_anchor=1: need true or false"),
        ({}, {"dflash_config": {"mask_token_id": 256, "target_layer_ids": [0, 4, 6]}}, "", "=256: need a row of the t"),
        ({}, {"dflash_config": {"mask_token_id": 255}}, "", "target_layer_ids=None: need the target's layers; give ta"),
        ({}, {"dflash_config": {"mask_token_id": 255, "target_layer_ids": [1, 8]}}, "",
         f"taps hidden state 9, the target has 0 to 8: {ANOTHER_TARGET}"),
        ({}, {"block_size": 1}, "", "block_size=1: need at least 2"),
        ({}, {"architectures": "DFlashDraftModel"}, "", "architectures=DFlashDraftModel: need a list"),
        ({"d2t": torch.zeros(2, 64, dtype=torch.long)}, {}, "", r"tensor d2t has shape \[2, 64\]: need \[128\]"),
        ({"d2t": torch.arange(128)}, {"draft_vocab_size": 100}, "", "d2t has 128 rows: config.json says draft_voc"),
        ({}, {"dflash_config": {"num_candidates": 4}}, "", "num_candidates=4 is not understood.*; if it only steere"),
        ({}, {"dflash_config": {"projector_type": "eagle"}}, "", "projector_type=eagle: need dflash or dspark"),
        ({"lm_head.weight": (2,)}, {"dflash_config": GONE, "mask_token_id": 5}, "", "weight of its own, but config"),
    ],
    "dspark": [
        ({}, {"block_size": None}, "", "block_size=None: need a whole number"),
        ({}, {"markov_rank": 4}, "", r"markov_rank=4: markov_head\.markov_w1\.weight has 16 columns"),
        ({}, {"markov_head_type": "gated"}, "", r"lacks tensors markov_head\.gate_proj\.bias, markov_head\.gate_proj"),
        ({"markov_head.joint_proj.bias": (9,)}, {}, "", r"holds unknown tensors markov_head\.joint_proj\.bias"),
        ({}, {"confidence_head_with_markov": False}, "", r"has 80 columns: need 64, confidence_head_with_markov=False"),
        ({}, {"layer_types": ["sliding_attention"] * 3}, "", "layer 0 is sliding_attention, of which DeepSpec's code"),
        ({}, {"is_causal": True}, "", "is_causal=True: blocks of DeepSpec are not causal"),
        ({}, {"causal": True}, "", "is_causal=True: blocks of DeepSpec are not causal"),
        ({}, {}, ",sample_from_anchor=1", "'sample_from_anchor=1': need true or false"),
        ({}, {"markov_rank": GONE}, "", r"embed_tokens\.weight, lm_head\.weight of its own, but config\.json is that "),
        ({"embed_tokens.weight": GONE, "lm_head.weight": GONE}, {"markov_rank": GONE}, "",
         r"DSpark's heads, but config\.json has no markov_rank"),
    ],
    "dspark, speculators": [
        ({}, {"aux_hidden_state_layer_ids": None}, "", "aux_hidden_state_layer_ids=None: need the target's layers"),
        ({}, {"draft_vocab_size": 11}, "", r"lm_head\.weight has 128 rows: config\.json says draft_vocab_size=11"),
        ({}, {"target_hidden_size": 32}, "", "target_hidden_size is 32, the target's 64"),
        ({}, {"dflash_config": {"top_k": 3}}, "", "dflash_config: top_k=3 is not understood"),
        ({}, {NESTED: {"architectures": 7}}, "", "num_attention_heads=None: need a whole number"),
        ({"t2d": torch.arange(256) % 2 == 1}, {}, "", "t2d and d2t contradict each other"),
    ],
    "peagle": [
        ({"mask_hidden": (1, 1, 64)}, {}, "", r"tensor mask_hidden has shape \[1, 1, 64\]: need 192 values, as fc tak"),
        ({"norm.weight": (3,)}, {}, "", r"tensor norm\.weight has shape \[3\]: need \[64\]"),
        ({"mask_embed": (2,)}, {}, "", "holds unknown tensors mask_embed"),
        ({}, {"norm_before_fc": True}, "", r"one or the other|lacks tensors input_norm\.weight"),
        ({}, {"norm_after_fc": True}, "", "norm_after_fc=True is not understood: need one of .*; if it only steered"),
        ({}, PROPOSING, "", "speculative_tokens=0: need a whole number"),
        ({}, {}, ",drafts=0", "'drafts=0': need a whole number of at least 1"),
    ],
    "medusa": [
        ({"2.0.linear.weight": GONE}, {}, "", r"lacks tensors 2\.0\.linear\.weight"),
        ({"3.1.weight": GONE}, {}, "", r"lacks tensors 3\.1\.weight"),
        ({"1.1.weight": (250, 64)}, {}, "", r"tensor 1\.1\.weight has shape \[250, 64\]: need \[256, 64\]"),
        ({f"{i}.1.weight": (300, 64) for i in range(4)}, {}, "", r"rows of 0\.1\.weight is 300, the target's 256"),
        ({"0.0.linear.weight": (32, 32)}, {}, "", "hidden size is 32, the target's 64"),
        ({}, {"vocab_size": 300}, "", "vocab_size is 300, the target's 256"),
    ],
    "hydra": [
        ({"hydra_mlp.2.0.res_connection.weight": GONE}, {}, "", r"lacks tensors hydra_mlp\.2\.0\.res_connection\.weig"),
        ({"hydra_lm_head.2.1.bias": (256,)}, {}, "", r"hydra_lm_head\.2\.1\.bias and hydra_lm_head\.2\.bias are the s"),
        ({"hydra_mlp.0.0.linear.weight": (64, 192)}, {}, "", r"has shape \[64, 192\]: need \[64, 128\]"),
        ({"input_embed_fn.weight": (300, 64)}, {}, "", r"rows of input_embed_fn\.weight is 300, the target's 256"),
        ({"prefix_embeding_layer.norm.weight": REST}, {"hydra_head_arch": GONE}, "", r"lacks tensors prefix_embeding_"),
        ({}, {"hydra_head_arch": "prefix-mlp"}, "", r"lacks tensors prefix_embeding_layer\.layers\.0"),
        ({}, {"hidden_state_offset": 9}, "", "hidden_state_offset=9: need 0 to"),
        *(({}, {"hydra_head_arch": kind}, "", f"hydra_head_arch={kind}: Hydra heads of this kind are not supported")
          for kind in ("cross-attn", "eagle-attn", "new")),
    ],
}  # fmt: skip
ROWS = [(head, *row) for head, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("head", "tensors", "config", "options", "message"), ROWS, indirect=["head"],
                         ids=[f"{row[0]}: {row[-1]}" for row in ROWS])  # fmt: skip
def test_it_is_refused_by_name(head, tensors, config, options, message):
    head.change(tensors, config)
    head.refused(message, options)


def inner(**settings):
    return {"dflash_config": {"mask_token_id": 255, "target_layer_ids": [0, 4, 6]} | settings}


def called(name: str):
    return {"architectures": [name]}


LAYER = "layers.0."
UNSUPPORTED = {  # of a head: what a published file of this name holds besides, and what it says
    "dflash": [
        ("DFlash 2", {f"{LAYER}attention_conv.base_kernel": (2,)}, {}),
        ("DFlash 2", {}, called("DFlash2DraftModel")),
        ("DFlash 2", {}, inner(selector_rank=256, conv_kernel_size=2)),
        ("Domino", {"prefix_gru.weight_ih_l0": (2, 2)}, {}),
        ("Domino", {}, called("DominoDraftModel") | inner(projector_type="domino", emb_dim=256)),
        ("LiLiCorr", {"lilicorr.token_proj.weight": (2, 2)}, {}),
        ("LiLiCorr", {}, inner(lilicorr_candidate_topk=4)),
        ("DSpine", {"injection.bias": (2,)}, {}),
        ("DSpine", {}, called("DSpineDraftModel") | {"dspine_config": {"top_k": 16}, "is_causal": True}),
        ("Laguna", {f"{LAYER}self_attn.g_proj.weight": (4, 64)}, {}),
        ("Laguna", {}, called("DFlashLagunaForCausalLM") | {"model_type": "laguna"} | inner(causal=True)),
        ("MiMo", {}, inner(attention_value_scale=0.6)),
        ("blocks of Gemma's kind", {f"{LAYER}pre_feedforward_layernorm.weight": (2,)}, {}),
    ],
    "dspark": [
        ("H-Spec", {}, called("HSpecDraftModel") | {"hspec_config": {"mamba_groups": 4}}),
        (r"latent or delta attention \(MLA, KDA\)", {}, inner(attention_modes=["kda", "gqa"], projector_type="dspark")),
        ("latent or delta attention", {f"{LAYER}self_attn.kv_b_proj.weight": (2, 2)}, {}),
        ("latent or delta attention", {}, called("KimiK3DSpark5MLADraftModel")),
        (r"experts \(MoE\)", {f"{LAYER}mlp.experts.gate_up_proj": (2, 2, 2)}, {}),
        ("experts", {}, {"moe_preset": "qwen3_5_moe", "n_routed_experts": 512}),
        ("attention to the target's K/V", {}, inner(conditioning_source="target_kv")),
    ],
    "eagle3": [
        ("experts", {"midlayer.mlp.experts.0.up_proj.weight": (2, 2)}, {"num_experts": 128}),
        ("experts", {}, called("Qwen3MoEForCausalLMEagle3")),
        ("EDSD", {"edfuse.up_proj.weight": (2, 2)}, {}),
        ("EDSD", {}, called("EdsdDraftModel") | {"target_layer_ids": [1, 2]}),
        ("parallel Medusa heads", {"parallel_draft_heads.0.medusa_layers.0.linear.weight": (2, 2)}, {}),
    ],
}
NAMED = [(head, *row) for head, rows in UNSUPPORTED.items() for row in rows]


@pytest.mark.parametrize(("head", "name", "tensors", "config"), NAMED, indirect=["head"],
                         ids=[f"{row[0]}: {row[1]}, {[*row[2], *row[3]]}" for row in NAMED])  # fmt: skip
def test_a_network_that_no_family_reads_is_refused_by_its_name(head, name, tensors, config):
    head.change(tensors, config)
    head.refused(rf"{name}.*\(.*\): not supported; (give|export)")


@pytest.mark.parametrize("head", ["eagle3, speculators", "dspark, speculators", "peagle", "dflash"], indirect=True)
@pytest.mark.parametrize("kind", ["mtp", "pard2", "jetspec", 7])
def test_a_kind_of_speculators_that_no_family_is_is_refused_by_its_name(head, kind):
    head.config["speculators_model_type"] = kind
    head.refused(
        rf"speculators_model_type={kind}: not supported; need one of dflash, dspark, eagle, eagle3, peagle\. If"
    )


STORED = ("weight_scale", "weight_packed", "qweight", "weight.absmax", "SCB")
METHODS = ("fp8", "compressed-tensors", "gptq", "awq", "bitsandbytes")
QUANTIZED = [({f"{LAYER}mlp.up_proj.{name}": (1,)}, {}) for name in STORED]
QUANTIZED += [({}, {"quantization_config": {"quant_method": method}}) for method in METHODS]


@pytest.mark.parametrize("head", HEADS, indirect=True)
def test_quantized_weights_are_refused_by_that_name(head):
    whole, said = head.tensors, head.config
    for tensors, config in QUANTIZED:
        head.tensors, head.config = whole, said
        head.change(tensors, config)
        head.refused(r"quantized weights \(.*\): not supported; export them as they were before llm-compressor")


@pytest.mark.parametrize("head", HEADS, indirect=True)
def test_what_trainers_leave_behind_and_what_changes_nothing_is_passed_over(head):
    """And what a flat config has of its target."""
    head.llama.update({"hidden_act": "silu", "partial_rotary_factor": 1.0, "residual_multiplier": 1.0})
    head.config |= {"dropped_layers": [], "dtype": "float32", "outrider_copy": 3}
    left = dict.fromkeys(TRAINING, 7) | {"training_mode": "vp_drafter"}
    head.config |= left | ({"num_experts": 128} if head.llama is head.config else {})
    if "dflash_config" in head.config:
        head.config["dflash_config"] |= left | {"causal": False}
    head.load()


SIZES = {"kv_hidden_size": 16, "hidden_size": 32, "head_dim": 16, "self_attention_num_key_value_heads": 4}
SIZES |= {"cross_attention_intermediate_size": 2, "layer_self_attention_intermediate_size": 2}


@pytest.mark.parametrize("head", ["moa"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_a_size_that_contradicts_moas_tensors_is_refused(head, size):
    head.config[size] = SIZES[size]
    head.refused(f"says {size}={SIZES[size]}, but its tensors make it")


LAYERS_OF_SPECULATORS = [
    ({"num_hidden_layers": 4}, r"holds \d layers: config\.json says num_hidden_layers=4"),
    ({"sliding_window": 8, "use_sliding_window": True, "layer_types": []}, "layer_types has 0 entries: layer 0 has"),
    ({"sliding_window": 8, "use_sliding_window": True, "layer_types": ["chunked_attention"] * 3},
     "layer 0 is chunked_attention: need full"),
    ({"sliding_window": 0, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3},
     "sliding_window=0: need a whole number"),
]  # fmt: skip


@pytest.mark.parametrize("head", ["eagle3, speculators", "peagle", "dspark, speculators"], indirect=True)
@pytest.mark.parametrize(("changes", "message"), LAYERS_OF_SPECULATORS, ids=str)
def test_speculators_layers_are_as_its_config_says(head, changes, message):
    head.llama.update(changes)
    head.refused(message)


@pytest.mark.parametrize("head", ["dspark"], indirect=True)
def test_a_threshold_needs_a_confidence_head(head):
    head.change(
        {f"confidence_head.proj.{name}": GONE for name in ("weight", "bias")}, {"enable_confidence_head": False}
    )
    head.load()
    with pytest.raises(UsageError, match=r"confidence=0\.5: it has no confidence head"):
        head.load(",confidence=0.5")


@pytest.mark.parametrize("head", GOLDEN, indirect=True)
def test_a_corrupt_file_is_named(head):
    (file,) = head.path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:2000])
    head.save = lambda: None
    head.refused(r"safetensors: not a readable safetensors file")
