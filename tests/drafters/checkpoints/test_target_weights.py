"""A target's borrowed parts from every layout, and the fingerprints of targets and tokenizers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from outrider_drafters import TargetWeights, resolve_dir, target_fingerprint, tokenizer_fingerprint
from outrider_drafters.readers.digest import weights_digest
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target


def tiny_target(**changes) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 40}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": [5, 6], "bos_token_id": 1}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return LlamaForCausalLM(LlamaConfig(**(sizes | changes)))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny_target().save_pretrained(tmp_path)
    return tmp_path


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_give_the_same(saved: Path, tmp_path: Path):
    sharded = tmp_path / "sharded"
    tiny_target().save_pretrained(sharded, max_shard_size="6KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    one, many = TargetWeights.load(saved), TargetWeights.load(sharded)
    assert torch.equal(one.embed, many.embed)
    assert torch.equal(one.lm_head, many.lm_head)
    assert one.sizes == many.sizes
    assert target_fingerprint(saved) == target_fingerprint(sharded)


def test_a_missing_shard_is_named(tmp_path: Path):
    tiny_target().save_pretrained(tmp_path, max_shard_size="6KB")
    shard = next(tmp_path.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(UsageError, match=f"{shard.name}: not a readable safetensors file"):
        TargetWeights.load(tmp_path)


def test_width_that_contradicts_the_config_is_refused(saved: Path):
    edit(saved / "config.json", hidden_size=32)
    with pytest.raises(UsageError, match=r"lm_head\.weight has shape \[40, 16\]: config\.json says hidden_size=32"):
        TargetWeights.load(saved)


def test_text_part_of_a_multimodal_target(saved: Path):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({"model_type": "seeing", "text_config": config}))
    tensors = load_file(saved / "model.safetensors")
    save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, saved / "model.safetensors")
    assert TargetWeights.load(saved).sizes.hidden == 16


def test_ends_of_text(saved: Path):
    assert TargetWeights.load(saved).eos_token_ids == (5, 6)
    edit(saved / "generation_config.json", eos_token_id=9)
    assert TargetWeights.load(saved).eos_token_ids == (9,)
    edit(saved / "generation_config.json", eos_token_id=None)
    edit(saved / "config.json", eos_token_id=None)
    assert TargetWeights.load(saved).eos_token_ids == ()


def test_fingerprint_follows_values_and_sizes(saved: Path, tmp_path: Path):
    before = target_fingerprint(saved)
    edit(saved / "config.json", dtype="float16")
    assert target_fingerprint(saved) == before
    edit(saved / "config.json", rope_theta=3.0, rope_parameters=None)
    assert target_fingerprint(saved) != before
    other = tmp_path / "other"
    model = tiny_target()
    with torch.no_grad():
        model.lm_head.weight[7, 3] += 0.01
    model.save_pretrained(other)
    assert target_fingerprint(other) != before


def test_tokenizer_fingerprint_follows_what_makes_ids(tmp_path: Path):
    assert tokenizer_fingerprint(tmp_path) == "none"
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [], "truncation": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    before = tokenizer_fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": {"max_length": 5}}, indent=1))
    assert tokenizer_fingerprint(tmp_path) == before
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer) + " " * 34_000_000)  # as large as Gemma's
    assert tokenizer_fingerprint(tmp_path) == before
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer | {"model": {"vocab": {"a": 1, "b": 0}}}))
    assert tokenizer_fingerprint(tmp_path) != before


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve_dir(tmp_path) == tmp_path
    for name in ("./nowhere", "/no/where", "nowhere", "a/b/c"):
        with pytest.raises(UsageError, match="no such directory"):
            resolve_dir(name)
    with pytest.raises(UsageError, match="owner/model: neither a directory nor a model the hub gives us"):
        resolve_dir("owner/model")  # the tests are offline
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: str(tmp_path / name))
    assert resolve_dir("owner/model") == tmp_path / "owner" / "model"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "adapter_config.json",
            '{"base_model_name_or_path": "owner/base"}',
            r": an adapter \(PEFT\) of owner/base; merge",
        ),
        ("small.gguf", "", r"; name its file .*small\.gguf$"),
        ("README.md", "", "$"),
    ],
)
def test_a_directory_that_is_no_model_says_what_it_is(tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=rf"not a model directory, it has no config\.json{message}"):
        TargetWeights.load(tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "lm_head.weight", "model.layers.2.mlp.up_proj.weight", "model.norm.weight"]
)
def test_weights_that_are_no_numbers_are_named(saved: Path, name: str, value: float):
    """On the client, where it borrows them, and by whoever loads the whole model."""
    tensors = load_file(saved / "model.safetensors")
    tensors[name].view(-1)[3] = value
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    readers = [Target.load]
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        readers.append(TargetWeights.load)
    elif "layers.2" in name:
        readers.append(lambda path: TargetWeights.load(path).last_layers(1))
    for read in readers:
        with pytest.raises(UsageError, match=rf"tensor {name} holds values that are no numbers"):
            read(str(saved))


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_digest_is_of_the_values_wherever_they_lie(offset: int):
    whole = torch.arange(600, dtype=torch.bfloat16)
    part = whole[offset : offset + 520]
    assert weights_digest({}, [("part", part)]) == weights_digest({}, [("part", part.clone())])
    assert weights_digest({}, [("part", part)]) != weights_digest({}, [("part", part + 1)])
