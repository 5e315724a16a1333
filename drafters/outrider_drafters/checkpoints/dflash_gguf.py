"""Translate llama.cpp's DFlash and DSpark drafters (general.architecture = dflash) to published names.

A DFlash becomes z-lab's layout; what has DSpark's heads, or says which row drafts first, speculators' layout, the one
that may lack an lm_head. Rows of q and k stay as they are, since llama.cpp rotates halves here. target_layers counts
hidden states, the embedding being the first; d2t holds target ids; the mask token stands among the tokenizer's keys.
Sources: ggml-org/llama.cpp, conversion/qwen.py and src/models/dflash.cpp, pull requests 22105, 25173, 26275.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import offsets
from outrider_drafters.checkpoints.eagle3_gguf import check_head_width, gguf_count, gguf_rope_scaling
from outrider_drafters.readers.config import FULL, KIND, SLIDING, Config
from outrider_drafters.readers.gguf_file import MASK_TOKEN, GgufFile
from outrider_proto.errors import UsageError

ARCHITECTURE = "dflash"
_FORK = "a fork's of llama.cpp, whose files differ: convert the drafter with ggml-org/llama.cpp"
FORKS: Mapping[str, str] = dict.fromkeys(("dflash-draft", "gemma4-dflash-draft", "dspark"), _FORK)
NAMES = {
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
LAYER_NAMES |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
LAYER_NAMES |= {f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"}
LAYER_NAMES |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
HEADS = ("markov_w1.weight", "conf_proj.weight")  # of DSpark
ITS_OWN = ("token_embd.weight", "output.weight", "d2t")
SECOND = r"selector_|blk\.\d+\.(attn|ffn)_conv_"  # names of DFlash 2's tensors
FROM_ROOT, TARGET_LAYERS = "sample_from_anchor", "target_layers"
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
KEYS = {  # of config.json, by the key after "dflash."
    "attention.causal": "is_causal",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "block_count": "num_hidden_layers",
    "block_size": "block_size",
    "context_length": "max_position_embeddings",
    "embedding_scale": "input_embedding_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "has_confidence_head": "enable_confidence_head",
    "logit_scale": "output_multiplier",
    "rope.freq_base": "rope_theta",
    FROM_ROOT: FROM_ROOT,
    "target_hidden_size": "target_hidden_size",
    "vocab_size": "vocab_size",
}
NEEDED = (
    *(f"{ARCHITECTURE}.{key}" for key in ("attention.layer_norm_rms_epsilon", "block_count", "block_size")),
    f"{ARCHITECTURE}.{TARGET_LAYERS}",
    MASK_TOKEN,
)
FROM_SHAPES = ("embedding_length", "feed_forward_length", "attention.head_count_kv", "attention.value_length")
ROPE = ("rope.dimension_count", "rope.dimension_sections", "attention.key_length")
UNDERSTOOD = frozenset({*KEYS, *FROM_SHAPES, *ROPE, "attention.head_count", TARGET_LAYERS, WINDOW, PATTERN})


def translate(file: GgufFile) -> tuple[Config, Mapping[str, Tensor]]:
    """Translate to a configuration and tensors. Tensors of unknown names keep them. Raises UsageError."""
    if any(re.match(SECOND, name) for name in file.tensors):
        raise UsageError(f"{file.path}: DFlash 2: only DFlash 1 is supported")
    _check_keys(file)
    return _config(file), {new: _values(name, file.tensors[name]) for new, name in file.renamed(_name).items()}


def _check_keys(file: GgufFile) -> None:
    """Raise UsageError for a key that is missing, or that is neither understood nor off."""
    for key in NEEDED:
        if key not in file.values:
            raise UsageError(f"{file.path}: lacks {key}: convert the drafter again with llama.cpp's newest")
    for key, value in file.values.items():
        name = key.removeprefix(f"{ARCHITECTURE}.")
        if name != key and value and name not in UNDERSTOOD and not name.startswith("rope.scaling."):
            raise UsageError(f"{file.path}: {key}={value} is not understood: need a DFlash or DSpark of Qwen3's blocks")


def _name(name: str) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in LAYER_NAMES:
        return NAMES.get(name, name)
    return f"layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def _values(name: str, stored: Tensor) -> Tensor:
    if name == "d2t":
        return offsets(stored)
    # llama.cpp stores a matrix of one row as a vector when it copies a file, as its quantizer does.
    return stored.view(1, -1) if name == "conf_proj.weight" else stored


def _config(file: GgufFile) -> Config:
    heads, layers = gguf_count(file, "attention.head_count"), _target_layers(file)
    check_head_width(file, heads)
    _check_sections(file)
    config = file.fields(KEYS) | {"num_attention_heads": heads, "mask_token_id": file.values[MASK_TOKEN]}
    config["rope_scaling"] = gguf_rope_scaling(file)
    has_heads = any(name in file.tensors for name in HEADS)
    if has_heads or FROM_ROOT in config:
        if file.of_architecture(WINDOW):
            raise UsageError(f"{file.path}: {ARCHITECTURE}.{WINDOW}: files of DSpark do not say how their windows lie")
        return config | {KIND: "dspark" if has_heads else "dflash", "aux_hidden_state_layer_ids": layers}
    if own := [name for name in ITS_OWN if name in file.tensors]:
        raise UsageError(f"{file.path}: {', '.join(own)} of its own: only a DSpark may have such")
    ids = [layer - 1 for layer in layers]
    return config | {"architectures": ["DFlashDraftModel"], "target_layer_ids": ids, **_windows(file)}


def _target_layers(file: GgufFile) -> list[int]:
    layers = file.of_architecture(TARGET_LAYERS)
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise UsageError(f"{file.path}: {ARCHITECTURE}.{TARGET_LAYERS}={layers}: need a list of whole numbers")
    return layers


def _windows(file: GgufFile) -> Config:
    """Return z-lab's settings of sliding layers."""
    window, pattern = file.of_architecture(WINDOW), file.of_architecture(PATTERN)
    if not window:
        return {"use_sliding_window": False}
    if not isinstance(pattern, list):
        raise UsageError(f"{file.path}: {ARCHITECTURE}.{PATTERN}={pattern}: need true or false for every layer")
    kinds = [SLIDING if slides else FULL for slides in pattern]
    return {"use_sliding_window": True, "sliding_window": window, "layer_types": kinds}


def _check_sections(file: GgufFile) -> None:
    # Drafters of targets with several positions a token (Qwen's for images) rotate every pair by the first of them.
    sections = file.of_architecture("rope.dimension_sections")
    if isinstance(sections, list) and any(sections[1:]):
        raise UsageError(f"{file.path}: rope.dimension_sections={sections}: need all pairs in the first")
