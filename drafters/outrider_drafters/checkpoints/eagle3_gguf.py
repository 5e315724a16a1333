"""Translate llama.cpp's EAGLE-3 heads (general.architecture = eagle3) to SafeAILab's names.

Three things differ from the other layouts. Rows of q and k are permuted, since llama.cpp rotates neighbors and
others halves; d2t holds target ids (early files: offsets); llama3's scaling is a tensor of divisors. Sources:
ggml-org/llama.cpp, pull requests 18039, 24977, 25794.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from outrider_drafters.checkpoints.draft_vocabulary import offsets
from outrider_drafters.readers.config import Config
from outrider_drafters.readers.gguf_file import GgufFile
from outrider_proto.errors import UsageError

ARCHITECTURE = "eagle3"
TARGET_LAYERS = "target_layers"  # key of GGUF files and of our own export; see families.eagle3.layout
NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "enc.output_norm.weight": "input_norm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "d2t.weight": "d2t",
    "blk.0.attn_norm.weight": "midlayer.input_layernorm.weight",
    "blk.0.attn_norm_2.weight": "midlayer.hidden_norm.weight",
    "blk.0.hidden_norm.weight": "midlayer.hidden_norm.weight",  # early files
    "blk.0.attn_output.weight": "midlayer.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "midlayer.post_attention_layernorm.weight",
}
NAMES |= {f"blk.0.attn_{x}.{kind}": f"midlayer.self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")}
NAMES |= {f"blk.0.ffn_{part}.weight": f"midlayer.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
ROPE_FREQS = "rope_freqs.weight"
KEYS = {  # of config.json, by the key after "eagle3."
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
    "target_hidden_size": "target_hidden_size",
    "extract_layers": TARGET_LAYERS,  # early files
    "target_layers": TARGET_LAYERS,
    "norm_before_residual": "norm_before_residual",
    "norm_before_fc": "norm_before_fc",
    "fc_norm": "fc_norm",
    "norm_output": "norm_output",
}


def translate(file: GgufFile) -> tuple[Config, Mapping[str, Tensor]]:
    """Translate to a configuration and tensors. Tensors of unknown names keep them. Raises UsageError."""
    if (blocks := file.of_architecture("block_count")) not in (None, 1):
        raise UsageError(f"{file.path}: block_count={blocks}: need 1")
    heads = gguf_count(file, "attention.head_count")
    kv_heads = gguf_count(file, "attention.head_count_kv", heads)
    made = {"architectures": [ARCHITECTURE], "num_attention_heads": heads, "rope_scaling": gguf_rope_scaling(file)}
    names = file.renamed(lambda name: NAMES.get(name, name)).items()
    tensors = {new: _values(file, name, heads, kv_heads) for new, name in names if name != ROPE_FREQS}
    check_head_width(file, heads)
    return file.fields(KEYS) | made, tensors


def _values(file: GgufFile, name: str, heads: int, kv_heads: int) -> Tensor:
    stored = file.tensors[name]
    if name.startswith(("blk.0.attn_q.", "blk.0.attn_k.")):
        return unpermute_rows(file, name, stored, heads if "_q." in name else kv_heads)
    return _offsets(stored) if name in ("d2t", "d2t.weight") else stored


def unpermute_rows(file: GgufFile, name: str, tensor: Tensor, heads: int) -> Tensor:
    """Reorder rows [heads x head_dim, ...] whose neighbors form RoPE's pairs, so that halves of a head do."""
    # Undoes llama.cpp's `permute`. Without it the head loads and runs, and merely drafts badly.
    if len(tensor) % (2 * heads):
        raise UsageError(f"{file.path}: tensor {name} has {len(tensor)} rows: need a multiple of {2 * heads}")
    pairs = tensor.view(heads, len(tensor) // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def _offsets(d2t: Tensor) -> Tensor:
    """Turn a d2t of target ids into offsets; a d2t of offsets stays as it is."""
    # Files do not say which they hold. Target ids are unique, while the offsets of any real vocabulary repeat.
    return offsets(d2t) if len(set(d2t.tolist())) == len(d2t) else d2t


def check_head_width(file: GgufFile, heads: int) -> None:
    """Raise UsageError unless all values of a head of the first layer are rotated, and are as many as the file says."""
    rotated, width = file.of_architecture("rope.dimension_count"), file.of_architecture("attention.key_length")
    q_rows = len(file.tensors["blk.0.attn_q.weight"]) if "blk.0.attn_q.weight" in file.tensors else None
    for what, value in (("rope.dimension_count", rotated), ("attention.key_length", width)):
        if value is not None and q_rows is not None and value * heads != q_rows:
            raise UsageError(f"{file.path}: {what}={value}: need {q_rows // heads}, the width of a head")


def gguf_rope_scaling(file: GgufFile) -> Config | None:
    """Return the `rope_scaling` of a config.json. Raises UsageError for two scalings."""
    factor = file.of_architecture("rope.scaling.factor") or file.of_architecture("rope.scale_linear")
    # As in llama.cpp: a factor without a type is linear, and one of 0 is none.
    kind = (file.of_architecture("rope.scaling.type") or "linear") if factor else "none"
    if ROPE_FREQS in file.tensors:
        if kind != "none":
            raise UsageError(f"{file.path}: {ROPE_FREQS} and rope.scaling.type={kind}: need one of them at most")
        return {"rope_type": "divisors", "divisors": file.tensors[ROPE_FREQS].flatten().tolist()}
    match kind:
        case "none":
            return None
        case "yarn":
            return {"rope_type": kind, "factor": factor, **_yarn(file, factor)}
        case _:
            return {"rope_type": kind, "factor": factor}


def _yarn(file: GgufFile, factor: float) -> Config:
    values = {
        "original_max_position_embeddings": file.of_architecture("rope.scaling.original_context_length"),
        "beta_fast": file.of_architecture("rope.scaling.yarn_beta_fast"),
        "beta_slow": file.of_architecture("rope.scaling.yarn_beta_slow"),
    }
    # llama.cpp multiplies attn_factor with YaRN's own magnitude; transformers' attention_factor, which its converter
    # writes as yarn_attn_factor, replaces that one.
    own = file.of_architecture("rope.scaling.yarn_attn_factor") or 1 + 0.1 * math.log(max(factor, 1.0))
    values["attention_factor"] = own * (file.of_architecture("rope.scaling.attn_factor") or 1.0)
    return {key: value for key, value in values.items() if value is not None}


def gguf_count(file: GgufFile, key: str, default: int | None = None) -> int:
    """Return a number of the architecture's keys, which may be a list of one. Raises UsageError for any below 1."""
    value = file.of_architecture(key)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value  # one a layer
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise UsageError(f"{file.path}: {file.architecture}.{key}={value}: need a whole number of at least 1")
    return value
