"""Attention of a divided target: every rank's heads are gathered to rank 0, which has the slots, and scattered back.

Both sides make the same two exchanges in every layer, whatever happens in between: otherwise the others would wait
forever.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.batch_segment import AttentionCall

_LEADER = 0


class GatheringAttention:
    """Rank 0's attention over the slots of one pass. A failure is kept until the pass is over."""

    def __init__(self, inner: SlotAttention) -> None:
        self._inner = inner
        self.failure: Exception | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        mine = (query, key, value)
        packed = _packed(mine)
        parts = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
        dist.gather(packed, parts, dst=_LEADER)
        of_ranks = [_unpacked(part, mine) for part in parts]
        query, key, value = (torch.cat(same, dim=1) for same in zip(*of_ranks, strict=True))
        shares = self._attended(layer, query, key, value, call).to(query.dtype).chunk(len(parts), dim=2)
        answer = torch.empty_like(shares[0], memory_format=torch.contiguous_format)
        dist.scatter(answer, [share.contiguous() for share in shares], src=_LEADER)
        return answer

    def _attended(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        # An error here must not leave the pass: the other ranks would wait in their collectives. Go on with zeros
        # instead.
        if self.failure is None:
            try:
                return self._inner.attend(layer, query, key, value, call)
            except Exception as error:
                self.failure = error
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


class WorkerAttention:
    """Attention of every other rank."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        dist.gather(_packed((query, key, value)), dst=_LEADER)
        answer = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        dist.scatter(answer, src=_LEADER)
        return answer


def _packed(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unpacked(packed: Tensor, like: tuple[Tensor, ...]) -> list[Tensor]:
    parts = torch.split(packed, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
