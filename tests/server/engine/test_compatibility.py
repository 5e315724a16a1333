"""Models that cannot run on slots are refused at load, and told why; where a target is put, in which type,
and what its checkpoint's faults look like."""

import json

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, SIZES, WINDOW, build, random_tokens
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.mamba import MambaConfig

from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_proto.errors import UsageError
from outrider_server.engine import hf_model
from outrider_server.engine.hf_model import decoder_layers, is_small, resolve_device, resolve_dtype
from outrider_server.engine.reference_decode import plain_greedy, plain_greedy_on_slots
from outrider_server.engine.target import Target
from outrider_server.kv.budget import RowShape

from ...marks import needs_int8


def test_layers_that_keep_no_kv_are_refused(tmp_path):
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2))
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"^mamba: "):
        Target.load(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
        ("gpt_bigcode", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
        ("gpt_neox", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}),
    ],
)
def test_older_names_of_the_embedding_are_no_obstacle(kind, more, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=61, eos_token_id=2, bos_token_id=1, **more)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    loaded = Target.load(str(tmp_path))
    weights = TargetWeights.load(tmp_path)
    assert loaded.fingerprint == target_fingerprint(tmp_path)
    assert (weights.sizes.hidden, weights.sizes.layers, weights.sizes.heads) == (32, 2, 4)
    assert weights.sizes.max_context == loaded.max_context
    assert torch.equal(weights.embed, model.get_input_embeddings().weight)
    assert torch.equal(weights.lm_head, model.get_output_embeddings().weight)


def tiny(kind: str, **more: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more))


@pytest.mark.parametrize(("kind", "more"), [("doge", {}), ("phimoe", {"num_local_experts": 4})])
def test_a_window_that_is_in_the_mask_alone_is_refused(kind, more):
    """Wider than the tokens of the check, as every real one is; not one that no text within the context exceeds."""
    for harmless in (None, 512):
        assert Target.of(tiny(kind, **more, sliding_window=harmless)).max_context == 512
    with pytest.raises(UsageError, match=f"{kind}: slots do not reproduce"):
        Target.of(tiny(kind, **more, sliding_window=64))


def test_layers_that_take_a_view_of_the_attention_are_no_obstacle():
    few = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1}
    assert Target.of(tiny("afmoe", **few, sliding_window=WINDOW)).max_context == 512


@pytest.mark.parametrize("kind", ["nemotron", "stablelm"])
def test_layers_that_hand_on_nothing_are_no_obstacle(kind):
    served = Target.of(tiny(kind))
    prompt = random_tokens(np.random.default_rng(4), 30)
    assert plain_greedy_on_slots(served, prompt, 40) == plain_greedy(served, prompt, 40)


def test_a_layer_outside_the_interface_is_refused():
    model = build("llama")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UsageError, match="3 of 4 layers"):
        Target.of(model)


def test_length_dependent_positions_need_a_context_limit():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    model = build("llama", rope_parameters=rope)
    with pytest.raises(UsageError, match="--max-context 256"):
        Target.of(model)
    assert Target.of(model, max_context=256).max_context == 256


@pytest.mark.parametrize(
    "more",
    [
        {"hidden_size_per_layer_input": 0},  # without embeddings for each layer: transformers 5.23 cannot cut its rows
        {"num_kv_shared_layers": 0},
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    ],
)
def test_gemma4_of_any_kind_is_a_target(more):
    served = Target.of(build("gemma4-shared", **more))
    readers = () if more.get("num_kv_shared_layers") == 0 else ((2, 0), (3, 1))
    assert served.kv.readers == readers
    assert [stack.row for stack in served.kv.stacks] == [RowShape(2, 8, 8), RowShape(2, 16, 16)]
    assert served.kv.bytes_per_token == (4 - len(readers)) // 2 * 2 * 2 * (8 + 16) * 4
    prompt = random_tokens(np.random.default_rng(1), 30)
    assert plain_greedy_on_slots(served, prompt, 40) == plain_greedy(served, prompt, 40)


def test_the_text_part_of_a_gemma4_that_sees_is_a_target():
    """Its tower for images has as many layers as the text."""
    text = CONFIGS["gemma4-shared"]().to_dict() | {"pad_token_id": 0}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "patch_size": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    vision = AutoConfig.for_model("gemma4_vision", **sizes, **heads).to_dict()
    config = AutoConfig.for_model("gemma4", text_config=text, vision_config=vision, audio_config=None)
    torch.manual_seed(0)
    served = Target.of(AutoModelForCausalLM.from_config(config))
    prompt = random_tokens(np.random.default_rng(2), 30)
    assert plain_greedy_on_slots(served, prompt, 40) == plain_greedy(served, prompt, 40)
    assert decoder_layers(served.model) is served.model.model.language_model.layers


def test_gpt_oss_with_its_own_positions_is_a_target():
    """Yarn's, which tests elsewhere leave out."""
    served = Target.of(build("gpt-oss", rope_parameters=GptOssConfig().rope_parameters))
    prompt = random_tokens(np.random.default_rng(3), 30)
    assert plain_greedy_on_slots(served, prompt, 40) == plain_greedy(served, prompt, 40)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_linear_attention_is_refused_by_name(kind):
    with pytest.raises(UsageError, match=f"{kind}: layers of type linear_attention, which do not") as told:
        Target.of(tiny(kind))
    assert "\n" not in str(told.value)


def test_a_checkpoint_that_is_no_causal_language_model_is_refused_in_one_line(tmp_path):
    AutoConfig.for_model("mistral3", text_config={"model_type": "mistral", **SIZES}).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"target .*: model_type=mistral3: not a causal language model") as told:
        Target.load(str(tmp_path))
    assert "\n" not in str(told.value)


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def checkpoint(tmp_path):
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def set_config(directory, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("computes_in_it", [True, False])
def test_auto_is_bfloat16_on_a_cpu_for_large_targets_where_it_computes_in_it(
    small, computes_in_it, checkpoint, monkeypatch
):
    count = sum(parameter.numel() for parameter in build("llama").parameters())
    monkeypatch.setattr(hf_model, "_SMALL", count + small)
    monkeypatch.setattr(hf_model, "cpu_has_bf16", lambda: computes_in_it)
    expected = torch.float32 if small or not computes_in_it else torch.bfloat16
    assert resolve_dtype("auto", checkpoint, CPU) == expected
    assert is_small(build("llama")) is small
    (checkpoint / "model.safetensors").unlink()  # whoever loads it says what is wrong
    assert resolve_dtype("auto", checkpoint, CPU) == torch.float32


def test_auto_is_the_checkpoints_own_on_a_gpu(checkpoint):
    assert resolve_dtype("auto", checkpoint, GPU) == torch.bfloat16
    set_config(checkpoint, dtype=None)
    assert resolve_dtype("auto", checkpoint, GPU) == torch.float32
    set_config(checkpoint, dtype="float8_e4m3fn")
    assert resolve_dtype("auto", checkpoint, GPU) == torch.bfloat16
    with pytest.raises(UsageError, match="dtype=half: need one of auto, float32, bfloat16, float16"):
        resolve_dtype("half", checkpoint, CPU)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made_on = []
    monkeypatch.setattr(torch, "empty", lambda size, device: made_on.append(device) or torch.zeros(size))
    resolve_device("auto")
    assert made_on == [torch.device("cuda")]


def test_a_loaded_target_tells_it(monkeypatch, checkpoint, caplog):
    monkeypatch.setattr("outrider_server.engine.hf_model.cpu_has_bf16", lambda: False)
    assert Target.load(str(checkpoint), "bfloat16", "cpu").kv.dtype == torch.bfloat16
    assert "several times longer" in caplog.text


@needs_int8
@pytest.mark.parametrize(("small", "possible"), [(False, True), (True, True), (False, False)])
def test_whoever_chooses_no_dtype_is_told_what_int8_would_give(small, possible, checkpoint, monkeypatch, caplog):
    monkeypatch.setattr(hf_model, "_SMALL", 2**30 if small else 0)
    monkeypatch.setattr(hf_model, "has_exact_int8", lambda: possible)
    Target.load(str(checkpoint), "float32")
    assert not caplog.records
    Target.load(str(checkpoint), "auto", "cpu")
    lines = [record.message for record in caplog.records if "--dtype int8" in record.message]
    assert len(lines) == (possible and not small)
    if lines:
        count = sum(parameter.numel() for parameter in build("llama").parameters())
        assert f"weights take {count / 1e9:.2g} GB instead of" in lines[0]


@needs_int8
def test_int8_does_not_need_bfloat16(checkpoint, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(checkpoint.parent / "cache"))
    monkeypatch.setattr(hf_model, "cpu_has_bf16", lambda: False)
    Target.load(str(checkpoint), "int8")
    assert not caplog.records


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq"])
def test_quantized_without_its_library(checkpoint, method):
    set_config(checkpoint, quantization_config={"quant_method": method, "bits": 4, "load_in_4bit": True})
    with pytest.raises(UsageError, match=f"target {checkpoint}: transformers cannot load it .+: \\w+: .+") as error:
        Target.load(str(checkpoint))
    assert "\n" not in str(error.value)


def test_a_file_cut_short(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UsageError, match=f"target {path}: not a readable safetensors file"):
        Target.load(str(checkpoint))
