"""Targets in GGUF files: the model and tokenizer they were made from, and what is refused."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gguf_llama import write_gguf
from gguf_models import make_model, write_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider_drafters import load_drafter
from outrider_drafters.checkpoints.catalog import installed_file
from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "small.gguf"
    write_gguf(target_dir(), path)
    return path


def in_cache(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.suffix != ".lock" and path.is_dir())


def test_the_model_and_its_text_come_out_as_they_went_in(file):
    directory, original = resolve_dir(file), target_dir()
    assert target_fingerprint(file) == target_fingerprint(original)
    stored = load_file(directory / "model.safetensors")
    for name, tensor in load_file(original / "model.safetensors").items():
        assert torch.equal(stored[name], tensor.float()), name
    ours, theirs = (AutoTokenizer.from_pretrained(str(place)) for place in (directory, original))
    for text in ("Mia has 1234 boxes.\n\n  She's  here: naïve 漢字 \U0001f600", "<|user|>no<|eos|>"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    chat = [{"role": "user", "content": "Who am I?"}]
    rendered = [t.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for t in (ours, theirs)]
    assert rendered[0] == rendered[1]
    models = [AutoModelForCausalLM.from_pretrained(str(p), dtype=torch.float32) for p in (directory, original)]
    ids = torch.tensor([theirs(rendered[0])["input_ids"]])
    with torch.inference_mode():
        assert torch.equal(*(model(ids).logits for model in models))
    assert TargetWeights.load(file).sizes == TargetWeights.load(original).sizes


def test_it_is_dequantized_once(file, tmp_path):
    directory = resolve_dir(file)
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert resolve_dir(file) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == before
    os.utime(file, ns=(1, 1))  # another file of that name
    assert resolve_dir(file) != directory


def test_answers_end_where_a_turn_ends(tmp_path):
    write_gguf(target_dir(), tmp_path / "chat.gguf", chat_end=3)
    assert TargetWeights.load(tmp_path / "chat.gguf").eos_token_ids == (1, 3)


def test_what_a_killed_process_left_is_removed(file, tmp_path):
    directory = resolve_dir(file)
    partial = directory.with_name(f"{directory.name}.partial")
    directory.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    assert TargetWeights.load(file).sizes.hidden == 192
    assert not partial.exists()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"rope_freqs.weight": torch.ones(5)}, r"tensor rope_freqs\.weight: need 8 divisors, all positive$"),
        ({"rope_freqs.weight": torch.zeros(8)}, r"tensor rope_freqs\.weight: need 8 divisors, all positive$"),
        ({"rope_factors_long.weight": torch.ones(8)}, r"lacks tensor rope_factors_short\.weight$"),
        ({"blk.1.ffn_up.weight": None}, r"lacks tensors blk\.1\.ffn_up\.weight$"),
        ({"blk.1.ffn_up.bias": torch.ones(96)}, r"holds unknown tensors blk\.1\.ffn_up\.bias$"),
        ({"blk.2.ffn_up.weight": torch.ones(96, 64)}, r"holds unknown tensors blk\.2\.ffn_up\.weight$"),
        ({"blk.0.ffn_up.weight": torch.ones(95, 64)}, r"tensor blk\.0\.ffn_up\.weight has shape \[95, 64\]: .*96"),
        (
            {"blk.1.ffn_up.weight": torch.ones(96, 64).log().log()},
            r"tensor model\.layers\.1\.\S+ holds values that are no",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_metadata(tmp_path, tensors, message):
    write_model(tmp_path / "odd.gguf", "llama", make_model("llama", {}), {}, tensors)
    with pytest.raises(UsageError, match=rf"odd\.gguf: {message}"):
        resolve_dir(tmp_path / "odd.gguf")
    assert in_cache(tmp_path) == ["outrider", "targets"]


def test_any_part_names_a_split_model(tmp_path):
    model = make_model("qwen2", {})
    write_model(tmp_path / "m.gguf", "qwen2", model, {}, tensors_a_part=9)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 3
    assert len({resolve_dir(part) for part in parts}) == 1
    stored = load_file(resolve_dir(parts[1]) / "model.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())
    write_model(tmp_path / "other.gguf", "qwen2", model, {}, {"output.weight": None}, tensors_a_part=9)
    (tmp_path / "other-00003-of-00003.gguf").replace(parts[2])
    with pytest.raises(UsageError, match=r"hold 26 tensors, split\.tensors\.count is 27: need all of one model"):
        resolve_dir(parts[0])
    parts[1].unlink()
    with pytest.raises(UsageError, match=r"m-00003-of-00003\.gguf: one of 3 parts: lacks m-00002-of-00003\.gguf"):
        resolve_dir(parts[2])
    with pytest.raises(UsageError, match=r"part\.gguf: one of 3 parts, which need the names NAME-00001-of-00003\.gguf"):
        resolve_dir(parts[0].rename(tmp_path / "part.gguf"))


def test_weights_are_of_the_type_that_is_asked_for(tmp_path):
    write_model(tmp_path / "m.gguf", "llama", make_model("llama", {}), {})
    stored = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        directory = resolve_dir(tmp_path / "m.gguf", dtype)
        stored[dtype] = load_file(directory / "model.safetensors")["lm_head.weight"]
        assert stored[dtype].dtype == dtype
        assert json.loads((directory / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
        assert target_fingerprint(directory) == target_fingerprint(tmp_path / "m.gguf")
    assert torch.equal(stored[torch.float32].bfloat16(), stored[torch.bfloat16])
    assert resolve_dir(tmp_path / "m.gguf") == directory, "the most exact there is"


def test_memory_and_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("outrider_drafters.readers.target_cache._SHARD_BYTES", 100_000)
    model = make_model("llama", {})
    write_model(tmp_path / "m.gguf", "llama", model, {}, {"output.weight": model.get_input_embeddings().weight})
    directory = resolve_dir(tmp_path / "m.gguf")
    assert len(list(directory.glob("*.safetensors"))) > 2
    weights = TargetWeights.load(directory)
    assert weights.lm_head is weights.embed, "an output.weight that repeats the embedding is stored once"
    assert torch.equal(weights.embed, model.get_input_embeddings().weight)


@pytest.mark.parametrize("split", [0, 9])
def test_a_language_model_drafts(tmp_path, split):
    write_model(tmp_path / "target.gguf", "llama", make_model("llama", {}), {})
    (tmp_path / "drafter").mkdir()
    small = make_model("qwen2", {"num_hidden_layers": 1})
    write_model(tmp_path / "drafter" / "small.gguf", "qwen2", small, {"block_count": 1}, tensors_a_part=split)
    target = TargetWeights.load(tmp_path / "target.gguf")
    for place in (sorted((tmp_path / "drafter").iterdir())[0], tmp_path / "drafter"):
        state = load_drafter(str(place), target).new_state()
        state.append([5, 6, 7])
        with torch.inference_mode():
            assert torch.allclose(state.root_logits(), small(torch.tensor([[5, 6, 7]])).logits[0, -1], atol=1e-4)


def test_a_disk_that_is_too_small(file, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=2**20))
    with pytest.raises(UsageError, match=r"small\.gguf: as float32 it takes [\d,]+ bytes; .* has [\d,]+ left"):
        resolve_dir(file)
    assert in_cache(tmp_path) == ["outrider", "targets"]


def test_a_disk_that_fills_meanwhile(file, tmp_path, room_for):
    with room_for(20_000), pytest.raises(UsageError, match=r"targets/.*: .*File too large"):
        resolve_dir(file)
    assert in_cache(tmp_path) == ["outrider", "targets"]


def test_a_model_that_was_got_by_name(file):
    with pytest.raises(UsageError, match="embedded_twin: no such directory or file, nor a name of"):
        resolve_dir("embedded_twin")
    installed_file("embedded_twin").parent.mkdir(parents=True)
    file.rename(installed_file("embedded_twin"))
    assert resolve_dir("embedded_twin") == resolve_dir(installed_file("embedded_twin"))
