"""A rank's share of the target: its parameters, how it joins the others, and how it loads."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from outrider_proto.errors import UsageError
from outrider_server.engine.hf_model import DTYPES, is_small, load_model

COLLECTIVE_S = 60.0  # how long a rank waits for another, within a pass or to join
_LOOPBACK = ("lo", "lo0")


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's parameters. `rendezvous`: a file, in a folder only this user can read, by which the ranks meet."""

    target: str  # a directory
    dtype: str
    device: str  # cpu or cuda
    rank: int
    num_ranks: int
    rendezvous: str
    threads: int | None

    @property
    def own_device(self) -> torch.device:
        return torch.device("cuda", self.rank) if self.device == "cuda" else torch.device("cpu")


def load_shard(shard: Shard) -> PreTrainedModel:
    """Join the other ranks and load. Raises UsageError."""
    _join(shard)
    torch.set_num_threads(shard.threads or max(1, torch.get_num_threads() // shard.num_ranks))
    model = load_model(shard.target, DTYPES[shard.dtype], None, distributed_config=_distributed(shard.num_ranks))
    model.train(False)
    if shard.threads is None and is_small(model):
        torch.set_num_threads(1)
    return model


def leave() -> None:
    """Leave the process group. Safe to call twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(shard: Shard) -> None:
    if shard.device == "cuda":
        # transformers picks the GPU by it.
        os.environ["LOCAL_RANK"] = str(shard.rank)
        torch.cuda.set_device(shard.own_device)
    else:
        _listen_on_loopback()
    patience = timedelta(seconds=COLLECTIVE_S)
    try:
        store = dist.FileStore(shard.rendezvous, shard.num_ranks)  # type: ignore[attr-defined] # torch's stubs forget it
        store.set_timeout(patience)
        dist.init_process_group(
            "nccl" if shard.device == "cuda" else "gloo",
            store=store,
            rank=shard.rank,
            world_size=shard.num_ranks,
            timeout=patience,
            device_id=shard.own_device if shard.device == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"tensor_parallel={shard.num_ranks}: the processes did not meet: {error}") from error


def _listen_on_loopback() -> None:
    """Make gloo listen on loopback."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError as error:
        raise UsageError(f"tensor_parallel: the network interfaces cannot be listed: {error}") from error
    if loopback := next((name for name in _LOOPBACK if name in names), None):
        # By default gloo listens on the address of the machine's name, and accepts whatever connects.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _distributed(num_ranks: int) -> object:
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        return DistributedConfig(tp_size=num_ranks)
    except (ImportError, TypeError) as error:
        raise UsageError(
            f"tensor_parallel={num_ranks}: this version of transformers cannot divide a model; need 5.17 or later"
        ) from error
