"""Write a Llama from a Hugging Face directory as a GGUF file, in the way of llama.cpp's converter."""

import json
from pathlib import Path

import gguf
from safetensors.torch import load_file
from torch import Tensor

_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(directory: Path, path: Path, architecture: str = "llama", chat_end: int | None = None) -> None:
    """Write the target of `directory` with float32 weights, its tokenizer and chat template."""
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, directory, config, chat_end)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(directory / "model.safetensors").items():
        named = _named(name)
        kind = named.split(".")[-2]
        rows = _permuted(tensor, heads[kind]) if kind in heads else tensor
        writer.add_tensor(named, rows.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, int], chat_end: int | None) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {**{number: token for token, number in tokenizer["model"]["vocab"].items()}, **special}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # digits one by one, then bytes: as the embedded target's
    writer.add_token_list([by_id[number] for number in range(config["vocab_size"])])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if number in special else normal for number in range(config["vocab_size"])])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    if chat_end is not None:
        writer.add_eot_token_id(chat_end)
    writer.add_chat_template(json.loads((directory / "tokenizer_config.json").read_text())["chat_template"])


def _named(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return f"blk.{layer}.{_PARTS[part]}.weight"


def _permuted(rows: Tensor, heads: int) -> Tensor:
    """Order q and k as llama.cpp does: value i and i + half of a head become neighbors."""
    return rows.view(heads, 2, -1, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)
