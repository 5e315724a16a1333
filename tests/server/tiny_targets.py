"""Tiny random targets of the architectures that the server is tested on, and random trees.

OUTRIDER_TEST_DEVICE=cuda puts those of target() on a GPU, and with them most tests of the engine.
"""

import os
from functools import lru_cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.mixtral import MixtralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from outrider_proto.tree import DraftTree
from outrider_server.engine.target import Target
from outrider_server.processor.int8_model import round_weights

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # logits far enough apart that no argmax hangs on rounding
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 7
DEVICE = os.environ.get("OUTRIDER_TEST_DEVICE", "cpu")
of_the_host = pytest.mark.skipif(DEVICE != "cpu", reason="tests what only a target on the CPU has")
_GEMMA4 = SIZES | {
    "sliding_window": WINDOW,
    "global_head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0,
    "initializer_range": 0.07,  # rounding grows with the scores, which no factor makes smaller
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen2-window": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**SIZES, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**SIZES, sliding_window=WINDOW, query_pre_attn_scalar=8, attn_logit_softcapping=5.0),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, rope_parameters=_ROPE
    ),
    # As the 12B: K/V heads of their own, and keys for values, in the layers that see everything.
    "gemma4": lambda: Gemma4TextConfig(
        **_GEMMA4 | {"hidden_size_per_layer_input": 0}, attention_k_eq_v=True, num_global_key_value_heads=1
    ),
    # As E2B and E4B: the last layers read the K/V of earlier ones.
    "gemma4-shared": lambda: Gemma4TextConfig(**_GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "mixtral-window": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW),
}


def build(name: str, seed: int = 0, **changes) -> PreTrainedModel:
    """A fresh random model in float32."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return AutoModelForCausalLM.from_config(config).eval()


def with_random_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Fresh models have biases of zero and norms of one, which prove nothing."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model


def in_int8(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with int8 codes for its matrices."""
    round_weights(model)
    return model


@lru_cache(maxsize=len(CONFIGS))
def target(name: str = "llama") -> Target:
    return Target.of(build(name).to(DEVICE))


def random_tokens(rng: np.random.Generator, count: int, vocab: int = VOCAB) -> list[int]:
    return rng.integers(3, vocab, count).tolist()


def random_tree(rng: np.random.Generator, num_nodes: int, vocab: int = VOCAB) -> DraftTree:
    """Parents and tokens at random, siblings distinct."""
    parents: list[int] = []
    tokens: list[int] = []
    while len(tokens) < num_nodes:
        parent, token = int(rng.integers(-1, len(tokens))), int(rng.integers(3, vocab))
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return DraftTree(tuple(tokens), tuple(parents))


def tree_around(rng: np.random.Generator, truth: list[int], num_right: int, num_wrong: int) -> DraftTree:
    """A tree that holds the first `num_right` tokens of `truth` (or all) as a path, among wrong branches, shuffled."""
    num_right = min(num_right, len(truth))
    parents: list[int] = []
    tokens: list[int] = []
    right = [-1]
    while len(right) <= num_right or num_wrong > 0:
        if len(right) <= num_right and (num_wrong == 0 or rng.random() < 0.5):
            parents.append(right[-1])
            tokens.append(truth[len(right) - 1])
            right.append(len(tokens) - 1)
            continue
        num_wrong -= 1
        parent, token = int(rng.integers(-1, len(tokens))), int(rng.integers(3, VOCAB))
        on_path = parent in right and right.index(parent) < len(truth) and truth[right.index(parent)] == token
        if not on_path and (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return DraftTree(tuple(tokens), tuple(parents))


class FakeRequest:
    """One that runs, until it is told otherwise."""

    over = False
