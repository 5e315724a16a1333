"""The check, before any process starts, whether a target can be divided among so many processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

from outrider_proto.errors import UsageError

_WHOLE_HEADS = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise")  # each rank has some heads, and all of each


def check_divisible(path: Path, num_ranks: int, device: str) -> None:
    """Raise UsageError where the target or the machine does not allow it."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device={device}: with tensor_parallel={num_ranks} need cpu, or cuda for cuda:0, cuda:1, ...")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config()
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(f"target {path}: {error}") from error
    _check_plan(config, num_ranks)
    heads = config.num_attention_heads
    for name, count in (("heads", heads), *(("K/V heads", count) for count in _kv_heads(config, heads))):
        if count % num_ranks:
            raise UsageError(
                f"tensor_parallel={num_ranks}: the target has {count} {name}; need a number that divides them"
            )
    _check_machine(num_ranks, device)


def _kv_heads(config: Any, heads: int) -> list[int]:  # Any: as below
    """Return the numbers of K/V heads that layers have."""
    # Gemma 4's layers differ, and its config then refuses to tell a number for all.
    by_layer = getattr(config, "per_layer_config", None)
    layers = [config] if by_layer is None else [by_layer[layer] for layer in range(config.num_hidden_layers)]
    return sorted({getattr(layer, "num_key_value_heads", None) or heads for layer in layers})


def _check_machine(num_ranks: int, device: str) -> None:
    if not dist.is_available() or dist.is_initialized():
        raise UsageError(
            f"tensor_parallel={num_ranks}: torch.distributed is missing, or in use in this process already"
        )
    num_gpus = torch.cuda.device_count()
    if device == "cuda" and num_gpus < num_ranks:
        raise UsageError(f"tensor_parallel={num_ranks}: there are {num_gpus} CUDA devices; need one each")
    # transformers divides over the accelerators it finds, whatever device we ask for.
    if device == "cpu" and num_gpus:
        raise UsageError(
            f"tensor_parallel={num_ranks} on the CPU of a machine with CUDA: hide it with CUDA_VISIBLE_DEVICES="
        )


def _check_plan(config: Any, num_ranks: int) -> None:  # Any: a model's config has whatever fields it likes
    plan = getattr(config, "base_model_tp_plan", None) or {}
    styles = {name.rsplit(".", 1)[-1]: style for name, style in plan.items()}
    if any(styles.get(name) != style for name, style in _WHOLE_HEADS.items()):
        raise UsageError(
            f"tensor_parallel={num_ranks}: transformers has no plan that divides the attention heads of"
            f" {config.model_type}; serve it with 1"
        )
