"""int8 targets: codes of a checkpoint, made once, mapped, and checked; answers that no company changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_llama import write_gguf
from safetensors.torch import load_file, save_file
from tiny_targets import build

from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.gguf_target import write_target
from outrider_drafters.quantization.quantize import code_tensors, quantize
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError
from outrider_server.engine import hf_model
from outrider_server.engine.reference_decode import plain_greedy_on_slots
from outrider_server.engine.target import Target

from ...marks import needs_int8

pytestmark = needs_int8
PROMPT = list(range(100, 130))
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outrider" / "targets"


@pytest.fixture
def saved(tmp_path):
    def save(name="llama", **changes):
        directory = tmp_path / name
        build(name, **changes).save_pretrained(directory)
        return directory

    return save


def made(cache):
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_a_directory_and_its_gguf_file_give_the_same_answers(tmp_path):
    write_gguf(target_dir(), tmp_path / "small.gguf")
    write_target(tmp_path / "small.gguf", tmp_path / "small")  # a copy of what the cache holds, with digests
    places = target_dir(), tmp_path / "small.gguf", tmp_path / "small"
    targets = [Target.load(str(place), "int8") for place in places]
    plain = Target.load(str(target_dir()))
    answers = [plain_greedy_on_slots(target, PROMPT, 20) for target in targets]
    assert answers[0] == answers[1] == answers[2]
    assert all(target.batch_invariant and target.fused is not None for target in targets)
    assert {target.fingerprint for target in targets} == {plain.fingerprint}
    assert plain.digest not in {target.digest for target in targets}


def test_codes_are_made_once_and_again_when_the_model_changes(saved, cache):
    directory = saved()
    first = Target.load(str(directory), "int8")
    (name,) = made(cache)
    stamp = (cache / name / "model.safetensors").stat().st_mtime_ns
    again = Target.load(str(directory), "int8")
    assert (cache / name / "model.safetensors").stat().st_mtime_ns == stamp
    assert again.digest == first.digest
    tensors = load_file(directory / "model.safetensors")
    save_file({key: tensor * 1.5 for key, tensor in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    save_file({"lm_head.weight": tensors[UP]}, directory / "outrider_rows.safetensors")  # as beside rounded weights
    changed = Target.load(str(directory), "int8")
    assert changed.digest != first.digest
    assert changed.fingerprint == target_fingerprint(directory)


def test_a_damaged_cache_is_told_and_made_again(saved, cache):
    directory = saved()
    Target.load(str(directory), "int8")
    path = cache / made(cache)[0] / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not what was written: it is removed; start again"):
        Target.load(str(directory), "int8")
    assert Target.load(str(directory), "int8").digest


def test_a_directory_of_ones_own_is_left_alone(saved, cache, tmp_path):
    Target.load(str(saved()), "int8")
    own = shutil.copytree(cache / made(cache)[0], tmp_path / "own")
    (own / "outrider_digests.json").write_text('{"model.safetensors": "of other weights"}')
    assert Target.load(str(own), "int8").digest
    assert (own / "model.safetensors").is_file()


def test_every_processor_gives_the_same_bits():
    """Sums of other widths, other kernels: what makers of processors and torch's builds for them differ in."""
    seen = set()
    for torchs, onednns in (("default", "AVX512_CORE_VNNI"), ("avx2", "AVX2_VNNI"), ("avx512", "DEFAULT")):
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": torchs, "ONEDNN_MAX_CPU_ISA": onednns}
        script = f"""
import hashlib, torch
from outrider_drafters.quantization.codes import has_exact_int8
torch.set_num_threads(1 + {len(seen)})
if not has_exact_int8():
    raise SystemExit("refused here")
from outrider_server.engine.reference_decode import plain_greedy_on_slots
from outrider_server.engine.target import Target
target, logits = Target.load({str(target_dir())!r}, "int8"), []
forward = Target.forward
def watched(*args):
    output = forward(*args)
    logits.append(output.logits)
    return output
Target.forward = watched
plain_greedy_on_slots(target, {PROMPT}, 40)
print(hashlib.sha256(torch.cat(logits).numpy().tobytes()).hexdigest())"""
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        if "refused here" not in done.stderr:
            assert done.returncode == 0, done.stderr
            seen.add(done.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_of_tied_models_and_those_without_a_fused_pass(saved, name):
    directory = saved(name, tie_word_embeddings=True)
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 60]}')
    target = Target.load(str(directory), "int8")
    assert target.eos_token_ids == Target.load(str(directory)).eos_token_ids == (2, 60)
    assert (target.fused is None) == (name == "gemma2")
    assert target.model.lm_head.weight.coded.shape == (61, 32)
    answer = plain_greedy_on_slots(target, [1, 7, 30], 12)
    assert answer == plain_greedy_on_slots(Target.load(str(directory), "int8", fused=False), [1, 7, 30], 12)


def refused(saved, monkeypatch, why):
    if why == "experts":
        return saved("mixtral"), "cpu"
    directory = saved()
    if why == "quantized":
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    if why in ("incomplete", "NaN", "int4"):
        tensors = load_file(directory / "model.safetensors")
        weight = tensors.pop(UP)
        tensors |= {UP: weight.log()} if why == "NaN" else {}
        tensors |= code_tensors(UP, quantize(weight, "int4")) if why == "int4" else {}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    if why == "processor":
        monkeypatch.setattr(hf_model, "has_exact_int8", lambda: False)
    return directory, "meta" if why == "device" else "cpu"


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("experts", r"dtype=int8: model\.layers\.0\.mlp\.\S+ of a MixtralForCausalLM is no linear layer's"),
        ("quantized", "its weights are quantized already; leave dtype out"),
        ("incomplete", rf"lacks tensors {UP}"),
        ("NaN", rf"tensor {UP} holds values that are no numbers"),
        ("int4", r"model\.\S+ has no int8 codes; leave dtype out"),
        ("processor", r"this processor does not multiply int8 exactly \(VNNI, AMX\); take bfloat16"),
        ("device", "dtype=int8: for processors; on meta take auto"),
    ],
)
def test_what_int8_cannot_be(saved, monkeypatch, cache, why, message):
    directory, device = refused(saved, monkeypatch, why)
    with pytest.raises(UsageError, match=message):
        Target.load(str(directory), "int8", device)
    assert not cache.exists() or not made(cache)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's /proc")
def test_codes_take_no_memory_beside_the_packed_ones(saved, cache):
    """Mapped anew after the check: only what is read, such as rows of the embedding, comes into memory."""
    target = Target.load(str(saved(hidden_size=512, intermediate_size=1536)), "int8")
    lines = Path("/proc/self/smaps").read_text().split("\n")
    sizes = [lines[at + 4] for at, line in enumerate(lines) if str(cache) in line]
    assert sizes
    assert all(line.startswith("Rss:") for line in sizes)
    resident = sum(int(line.split()[1]) for line in sizes) * 1024
    assert resident < 0.5 * sum(tensor.numel() for tensor in target.model.parameters())
