"""Write a DFlash or DSpark from a published directory as a GGUF file, in the way of llama.cpp's converter.

Names and keys: ggml-org/llama.cpp, conversion/qwen.py (DFlashModel, DSparkModel) and gguf-py/gguf/constants.py. Spelled
out here, rather than taken from the reader.
"""

import json
from pathlib import Path

from gguf_writing import writing
from safetensors.torch import load_file
from torch import Tensor

NAMES = {
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def converted(name: str) -> str:
    """The converter's name of a published tensor."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("layers."):
        return f"{NAMES.get(stem, stem)}.{kind}"
    _, layer, part = stem.split(".", 2)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


class DFlashWriter:
    """What the converter makes of a directory of z-lab's or DeepSpec's; a test may change it before it is written."""

    def __init__(self, directory: Path, path: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        settings = config | config.get("dflash_config", {})
        stored = load_file(directory / "model.safetensors")
        self.path, self.architecture = path, "dflash"
        self.tensors: dict[str, Tensor] = {converted(name): tensor for name, tensor in stored.items()}
        self.mask_token: int | None = settings["mask_token_id"]
        self.values: dict[str, object] = {
            "block_count": config["num_hidden_layers"],
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "feed_forward_length": config["intermediate_size"],
            "attention.head_count": config["num_attention_heads"],
            "attention.head_count_kv": config["num_key_value_heads"],
            "rope.freq_base": float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"]),
            "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "attention.key_length": config["head_dim"],
            "attention.value_length": config["head_dim"],
            "block_size": settings["block_size"],
            "target_layers": [layer + 1 for layer in settings["target_layer_ids"]],
        }
        if config["use_sliding_window"] and config["sliding_window"]:
            self.values["attention.sliding_window"] = config["sliding_window"]
            kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
            self.values["attention.sliding_window_pattern"] = kinds
        if config.get("is_causal") is not None:
            self.values["attention.causal"] = config["is_causal"]
        if config.get("markov_rank") is not None:
            self.values |= {"sample_from_anchor": True, "has_confidence_head": config["enable_confidence_head"]}

    def write(self) -> Path:
        with writing(self.path, self.architecture, self.values) as writer:
            writer.add_token_list([f"token{number}" for number in range(256)])
            if self.mask_token is not None:
                writer.add_mask_token_id(self.mask_token)
            for name, tensor in self.tensors.items():
                writer.add_tensor(name, tensor.numpy())
        return self.path
