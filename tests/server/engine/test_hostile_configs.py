"""A config.json that a stranger wrote: absurd values are refused in a line, and keys that name code go nowhere."""

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_targets import CONFIGS, build

from outrider_drafters import TargetWeights, target_fingerprint
from outrider_drafters.checkpoints.causal_lm import empty_causal_lm, load_causal_lm
from outrider_drafters.checkpoints.hf_config import causal_config
from outrider_drafters.load import load_drafter
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError

SIZES = (
    "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "vocab_size", "draft_vocab_size",
)  # fmt: skip
OTHERS = ("architectures", "dtype", "eos_token_id", "hidden_act", "layer_types", "model_type", "rope_parameters",
          "rope_scaling", "text_config")  # fmt: skip
ABSURD = [
    *((key, value) for key in SIZES for value in (0, -1, 10**6, 10**9, 10**30, 10**400, "x", [1], {}, 0.5)),
    *((key, value) for key in OTHERS for value in (7, "x", [1], [[["a"], 10**9]], {"a": 10**400})),
    ("num_labels", 10**9), ("attention_types", [[["global"], 10**9]]), ("num_kv_shared_layers", "x"),
    ("per_layer_config", {"0": {"head_dim": 10**9}}), ("partial_rotary_factor", 1e9),
    ("architectures", ["deepseek" * 100_000]),
]  # fmt: skip


def changed(directory: Path, changes: dict) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def borrowed() -> TargetWeights:
    return TargetWeights.load(target_dir())


def loaded_as(kind: str, directory: Path, target: TargetWeights) -> None:
    match kind:
        case "target":
            TargetWeights.load(directory)
            target_fingerprint(directory)
            empty_causal_lm(Checkpoint(directory))
        case _:
            load_drafter(directory, target)


@pytest.mark.parametrize("kind", ["independent", "moa", "eagle2", "eagle3", "medusa", "hydra", "dspark", "target"])
def test_absurd_values_load_or_are_refused_in_a_line(tmp_path: Path, borrowed, kind: str):
    source = target_dir() if kind == "target" else drafter_dir(kind)
    shutil.copytree(source, tmp_path / "d")
    plain = json.loads((source / "config.json").read_text())
    refused = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for key, value in ABSURD if kind != "independent" else ABSURD[::3]:  # transformers takes its time
        (tmp_path / "d/config.json").write_text(json.dumps({**plain, key: value}))
        try:
            loaded_as(kind, tmp_path / "d", borrowed)
        except UsageError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert not [message for message in refused if "\n" in message or len(message) > 700]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


@pytest.mark.parametrize("kind", ["dspark", "eagle2", "eagle3"])
@pytest.mark.parametrize("digits", [7, 5000])
def test_a_layers_number_in_a_tensors_name_makes_no_layers(tmp_path: Path, borrowed, kind: str, digits: int):
    shutil.copytree(drafter_dir(kind), tmp_path / "d")
    config = json.loads((tmp_path / "d/config.json").read_text())
    (tmp_path / "d/config.json").write_text(json.dumps({**config, "num_hidden_layers": None}))
    tensors = load_file(tmp_path / "d/model.safetensors")
    tensors[f"layers.{'9' * digits}.input_layernorm.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "d/model.safetensors", metadata={"format": "pt"})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError) as told:
        load_drafter(tmp_path / "d", borrowed)
    assert len(str(told.value)) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


NAMES_CODE = {
    "_attn_implementation": "somebody/kernel", "attn_implementation": "somebody/kernel", "num_labels": 10**9,
    "_attn_implementation_internal": "somebody/kernel", "experts_implementation": "somebody/kernel",
    "_experts_implementation": "x/y", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "a/b--own.M"},
    "trust_remote_code": True, "_name_or_path": "/etc/passwd", "name_or_path": "owner/model", "output_attentions": True,
    "configuration_files": ["config.99.json"], "_commit_hash": "x", "return_dict": False, "output_hidden_states": True,
    "use_kernels": True, "base_model_tp_plan": {"a": "b"}, "attribute_map": {"hidden_size": "x"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "gpt-oss"])
def test_keys_that_name_code_or_another_place_change_nothing(tmp_path: Path, kind: str):
    model = build(kind)
    model.save_pretrained(tmp_path)
    plain = causal_config(tmp_path).to_dict()
    changed(tmp_path, NAMES_CODE)
    assert causal_config(tmp_path).to_dict() == plain
    again, info = load_causal_lm(tmp_path)
    assert not info["missing_keys"]
    assert again.config._attn_implementation in ("eager", "sdpa")


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_describes_a_network_is_kept(tmp_path: Path, kind: str):
    """Of every architecture that the tests know: the configuration is that which transformers reads by itself."""
    from transformers import AutoConfig

    build(kind).save_pretrained(tmp_path)
    theirs, ours = AutoConfig.from_pretrained(tmp_path).to_dict(), causal_config(tmp_path).to_dict()
    for ignored in ("_name_or_path", "transformers_version", "id2label", "label2id"):
        theirs.pop(ignored, None), ours.pop(ignored, None)
    assert ours == theirs
