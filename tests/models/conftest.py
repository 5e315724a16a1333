"""A target small enough to train drafters for in a second."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider_models.core.embedded import target_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))  # for what writes GGUF files


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory):
    """Directory of a tiny target with random weights and the embedded target's tokenizer."""
    directory = tmp_path_factory.mktemp("target")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target_dir() / name, directory)
    embedded = LlamaConfig.from_pretrained(target_dir())
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        **sizes, intermediate_size=48, initializer_range=0.2, tie_word_embeddings=True, vocab_size=embedded.vocab_size,
        max_position_embeddings=embedded.max_position_embeddings, bos_token_id=embedded.bos_token_id,
        eos_token_id=embedded.eos_token_id, pad_token_id=embedded.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory)
    return directory
