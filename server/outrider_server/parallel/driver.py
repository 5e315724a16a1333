"""Rank 0's model: a pass through it is a pass through all ranks, which its callers need not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.hf_config import causal_config
from outrider_drafters.quantization.quantize import dtype_name
from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_server.config.config import ServerConfig
from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.compatibility import TRIAL
from outrider_server.engine.hf_model import AUTO, resolve_device, resolve_target
from outrider_server.engine.target import Target, digest_of, public_name
from outrider_server.parallel.gathered_attention import GatheringAttention
from outrider_server.parallel.ranks import RankProcesses
from outrider_server.parallel.shard import Shard, load_shard

_WHOLE_HEADS = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise")  # each rank has some heads, and all of each


def load_tensor_parallel(config: ServerConfig) -> Target:
    """Start the other ranks and load together with them. Raises UsageError."""
    device = resolve_device(config.device).type if config.device == AUTO else config.device
    path, dtype = resolve_target(config.target, config.dtype, torch.device("cuda" if device == "cuda" else "cpu"))
    _check_divisible(path, config.tensor_parallel, device)
    shard = Shard(str(path), dtype_name(dtype), device, 0, config.tensor_parallel, "", config.threads)
    ranks, shard = RankProcesses.start(shard)
    try:
        model = load_shard(shard)
        digest = digest_of(model, path)
        ranks.await_loaded()
        # As transformers does to each divided layer.
        model.forward = _DrivenModel(model, ranks).forward
        target = Target.of(
            model,
            name=public_name(config.target),
            fingerprint=target_fingerprint(path),
            directory=path,
            max_context=config.max_context,
            ranks=ranks,
        )
        target = replace(target, digest=digest)
    except BaseException:
        ranks.close()
        raise
    ranks.watch()
    return target


class _DrivenModel:
    def __init__(self, model: PreTrainedModel, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._forward = model.forward

    @torch.inference_mode()
    def forward(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        slots: SlotAttention | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool = False,
        use_cache: bool = False,
        attention_mask: Tensor | None = None,
    ) -> Any:  # Any: transformers' own output types
        """Run a pass on all ranks, which need no mask. Raises Refusal once a rank is gone."""
        assert not use_cache
        if self._ranks.broken.done():
            raise self._refusal()
        gathering = None if slots is None else GatheringAttention(slots)
        arguments = {"input_ids": input_ids, "position_ids": position_ids}
        if isinstance(logits_to_keep, Tensor):
            arguments["logits_to_keep"] = logits_to_keep
        try:
            self._ranks.broadcast(arguments, on_slots=gathering is not None, trial=TRIAL.get())
            more = {} if gathering is None else {"slots": gathering}
            output = self._forward(**arguments, **more, use_cache=False, output_hidden_states=output_hidden_states)
        except Exception as error:
            if not self._ranks.watched:
                raise  # while loading, all ranks fail alike, and the caller explains it
            # Some ranks are still in the pass that this one has left: their collectives will never match again.
            self._ranks.fail_pass(error)
            raise self._refusal() from error
        if gathering is not None and gathering.failure is not None:
            raise gathering.failure
        return output

    def _refusal(self) -> Refusal:
        return Refusal(Reason.SHUTTING_DOWN, "the server is about to restart: part of its target is gone")


def _check_divisible(path: Path, num_ranks: int, device: str) -> None:
    """Raise UsageError, before any process starts, where the target or the machine does not allow it."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device={device}: with tensor_parallel={num_ranks} need cpu, or cuda for cuda:0, cuda:1, ...")
    config = causal_config(path).get_text_config()
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
