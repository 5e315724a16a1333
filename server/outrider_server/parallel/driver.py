"""Rank 0's model: a pass through it is a pass through all ranks, which its callers need not know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_proto.errors import Reason, Refusal
from outrider_server.config.config import ServerConfig
from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.hf_model import AUTO, dtype_name, resolve_device, resolve_dtype
from outrider_server.engine.target import Target, public_name
from outrider_server.parallel.divisible import check_divisible
from outrider_server.parallel.gathered_attention import GatheringAttention
from outrider_server.parallel.ranks import RankProcesses
from outrider_server.parallel.shard import Shard, load_shard


def load_tensor_parallel(config: ServerConfig) -> Target:
    """Start the other ranks and load together with them. Raises UsageError."""
    path = resolve_dir(config.target)
    device = resolve_device(config.device).type if config.device == AUTO else config.device
    dtype = resolve_dtype(config.dtype, path, torch.device("cuda" if device == "cuda" else "cpu"))
    check_divisible(path, config.tensor_parallel, device)
    shard = Shard(str(path), dtype_name(dtype), device, 0, config.tensor_parallel, "", config.threads)
    ranks, shard = RankProcesses.start(shard)
    try:
        model = load_shard(shard)
        ranks.await_loaded()
        _DrivenModel(model, ranks).install()
        target = Target.of(
            model,
            name=public_name(config.target),
            fingerprint=target_fingerprint(path),
            directory=path,
            max_context=config.max_context,
            ranks=ranks,
        )
    except BaseException:
        ranks.close()
        raise
    ranks.watch()
    return target


class _DrivenModel:
    def __init__(self, model: PreTrainedModel, ranks: RankProcesses) -> None:
        self._model = model
        self._ranks = ranks
        self._forward = model.forward

    def install(self) -> None:
        """Replace the model's forward(), as transformers does to each divided layer."""
        self._model.forward = self.forward

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
            self._ranks.broadcast(arguments, on_slots=gathering is not None)
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
