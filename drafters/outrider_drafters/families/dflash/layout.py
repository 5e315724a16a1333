"""DFlash's published layout: config.json (Qwen3's keys and `dflash_config`) and tensors without embedding and lm_head.

Settings are in `dflash_config` or beside it. A sliding layer is causal unless `is_causal` says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from outrider_drafters.blocks.layers import QK_NORMS, WEIGHTS, BlockShape, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import LAST
from outrider_drafters.families.dflash.network import DFlashSizes, LayerMask
from outrider_drafters.readers.config import config_int

REQUIRED = frozenset(
    {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.0.{name}" for name in (*WEIGHTS, *QK_NORMS)}
)
SECOND = ("attention_conv", "mlp_conv", "candidate_selector")  # parts of DFlash 2
OWN_HEAD = frozenset({"lm_head.weight", "d2t", "embed_tokens.weight"})  # of the speculators layout
BLOCK = 16
SLIDING = "sliding_attention"
MAX_WINDOW_LAYERS = 28  # Qwen3's default: layers from this one on slide, where any do


def recognizes(files: DrafterFiles) -> bool:
    """Recognize the architecture, or a hidden_norm outside the layers, which no other family has."""
    named = any(str(name).startswith("DFlash") for name in files.config.get("architectures") or ())
    return named or "hidden_norm.weight" in files.names


def read_sizes(files: DrafterFiles, target: TargetSizes) -> DFlashSizes:
    """Read sizes from tensors and settings from config.json. Raises UsageError for anything but version 1."""
    _refuse_others(files)
    files.need_vocabulary(target)
    files.need(REQUIRED)
    files.need_equal("num_target_layers", config_int(files.config, "num_target_layers", target.layers), target.layers)
    shape = _shape(files)
    files.need_equal("hidden size", shape.width, target.hidden)
    num_layers = 1 + max(int(match[1]) for name in files.names if (match := re.match(r"layers\.(\d+)\.", name)))
    softcap = _setting(files, "final_logit_softcapping")
    return DFlashSizes(
        shape=shape,
        layer_masks=tuple(_sight(files, layer) for layer in range(num_layers)),
        taps=_taps(files, target),
        block=_whole(files, "block_size", BLOCK),
        mask_token=_mask_token(files, target),
        embed_scale=_number(files, "input_embedding_scale"),
        logit_scale=_number(files, "output_multiplier"),
        softcap=None if not softcap else _number(files, "final_logit_softcapping"),
    )


def _refuse_others(files: DrafterFiles) -> None:
    if any(part in name for name in files.names for part in SECOND):
        raise files.fault(f"DFlash 2 ({', '.join(SECOND)}): only DFlash 1 is supported")
    if unsupported := sorted(OWN_HEAD & files.names):
        raise files.fault(
            f"DFlash with {', '.join(unsupported)} of its own (speculators): only z-lab's layout is supported"
        )


def _shape(files: DrafterFiles) -> BlockShape:
    shape = stored_shape(files.checkpoint, "layers.0.", files.config)
    return replace(shape, rope_scaling=rope_scaling(files.config))


def _taps(files: DrafterFiles, target: TargetSizes) -> tuple[int, ...]:
    """Return the tapped hidden states, from the option or the config; fc's width must fit their number."""
    taps = files.options.target_layers
    if taps is None:
        ids = _setting(files, "target_layer_ids")
        if not isinstance(ids, list) or not all(type(layer) is int for layer in ids):
            raise files.fault(f"target_layer_ids={ids}: need the target's layers; give target_layers=I-J-...")
        # Published ids count layers, hidden_states begins with the embedding: layer i's output is hidden_states[i + 1].
        taps = tuple(layer + 1 for layer in ids)
    if wrong := [tap for tap in taps if not 0 <= tap <= target.layers]:
        raise files.fault(f"taps hidden state {wrong[0]}, the target has 0 to {target.layers}: made for another target")
    files.need_equal("width of fc", files.checkpoint.matrix("fc.weight")[1], len(taps) * target.hidden)
    return tuple(LAST if tap == target.layers else tap for tap in taps)


def _sight(files: DrafterFiles, layer: int) -> LayerMask:
    config = files.config
    slides = bool(config.get("use_sliding_window"))
    types = config.get("layer_types")
    if isinstance(types, list):
        if layer >= len(types):
            raise files.fault(f"layer_types has {len(types)} entries: layer {layer} has none")
        sliding = types[layer] == SLIDING
    else:
        sliding = slides and layer >= config_int(config, "max_window_layers", MAX_WINDOW_LAYERS)
    causal = config.get("is_causal")
    window = config_int(config, "sliding_window", 4096) if sliding and slides else None
    return LayerMask(sliding if causal is None else bool(causal), window)


def _mask_token(files: DrafterFiles, target: TargetSizes) -> int:
    token = _setting(files, "mask_token_id")
    if type(token) is not int or not 0 <= token < target.vocab:
        raise files.fault(f"mask_token_id={token}: need a row of the target's embedding, 0 to {target.vocab - 1}")
    return token


def _setting(files: DrafterFiles, name: str) -> Any:  # Any: raw JSON
    inner = files.config.get("dflash_config")
    value = inner.get(name) if isinstance(inner, dict) else None
    return files.config.get(name) if value is None else value


def _whole(files: DrafterFiles, name: str, default: int) -> int:
    return config_int({name: _setting(files, name)}, name, default)


def _number(files: DrafterFiles, name: str) -> float:
    """Read a factor, by default 1."""
    value = _setting(files, name)
    if value is not None and type(value) not in (int, float):
        raise files.fault(f"{name}={value}: need a number")
    return 1.0 if value is None else float(value)
