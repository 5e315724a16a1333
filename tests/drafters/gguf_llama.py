"""Write a Llama from a Hugging Face directory as a GGUF file, in the way of llama.cpp's converter."""

import json
from pathlib import Path

import gguf
import torch
from gguf_models import converted
from gguf_writing import writing
from transformers import AutoModelForCausalLM, PreTrainedConfig


def write_gguf(directory: Path, path: Path, chat_end: int | None = None) -> None:
    """Write the target of `directory` with float32 weights, its tokenizer and chat template."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = model.config
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    values |= dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), config.head_dim)
    with writing(path, "llama", values) as writer:
        _add_tokenizer(writer, directory, config, chat_end)
        for name, tensor in converted("llama", model):
            writer.add_tensor(name, tensor.contiguous().numpy())


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: PreTrainedConfig, chat_end: int | None) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {**{number: token for token, number in tokenizer["model"]["vocab"].items()}, **special}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # digits one by one, then bytes: as the embedded target's
    writer.add_token_list([by_id[number] for number in range(config.vocab_size)])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if number in special else normal for number in range(config.vocab_size)])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_pad_token_id(config.pad_token_id)
    if chat_end is not None:
        writer.add_eot_token_id(chat_end)
    writer.add_chat_template(json.loads((directory / "tokenizer_config.json").read_text())["chat_template"])
