"""The limit of the hardware: the target's passes without sessions, wire and clients.

linear   only the matrix products with the weights, at the rows of the batch: no pass can be faster
engine   the whole pass, with attention over a context as long as the prompts', trees verified and committed
"""

from __future__ import annotations

import random
import statistics
import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory

_LEAST_S = 1.0  # seconds to measure each
_LEAST_PASSES = 5


@dataclass(frozen=True, slots=True)
class HardwareLimit:
    """Verifies per second for drafts of `rows` rows in each of `num_sessions`, after `context` tokens."""

    num_sessions: int
    rows: int
    context: int
    linear_per_s: float
    engine_per_s: float


@torch.inference_mode()
def hardware_limits(target: Target, sessions: abc.Sequence[int], rows: int, context: int) -> list[HardwareLimit]:
    """Measure each number of sessions; `rows` are the root and the nodes of a draft."""
    found = []
    engine = Engine(target)
    for count in sessions:
        linear_s = _seconds(_products(target, count * rows))
        engine_s = _seconds(_passes(engine, count, rows, context))
        found.append(HardwareLimit(count, rows, context, count / linear_s, count / engine_s))
    return found


def _products(target: Target, rows: int) -> Callable[[], None]:
    weights = [module.weight for module in target.model.modules() if isinstance(module, nn.Linear)]
    inputs = {weight.shape[1]: _noise(rows, weight) for weight in weights}

    def once() -> None:
        for weight in weights:
            functional.linear(inputs[weight.shape[1]], weight)

    return once


def _noise(rows: int, weight: torch.Tensor) -> torch.Tensor:
    return torch.randn(rows, weight.shape[1], dtype=weight.dtype, device=weight.device)


def _passes(engine: Engine, count: int, rows: int, context: int) -> Callable[[], None]:
    target, generator = engine.target, random.Random(count)
    memory = KVMemory(target.kv)
    sequences = [Sequence(memory, None) for _ in range(count)]

    def token() -> int:
        return generator.randrange(target.vocab_size)

    sampler = Sampler(Sampling())
    for one in sequences:
        for outcome in engine.verify([StepInput(one, [token() for _ in range(context)])]):
            engine.commit(outcome)
    tree = DraftTree.chain([token() for _ in range(rows - 1)])

    def once() -> None:
        for outcome in engine.verify([StepInput(one, (token(),), tree, sampler) for one in sequences]):
            engine.commit(outcome)
        for one in sequences:
            # Every pass has to follow the same context.
            one.truncate(context)

    return once


def _seconds(once: Callable[[], None]) -> float:
    """Return the median time of a call; the first one warms up and is not counted."""
    once()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _LEAST_PASSES or time.perf_counter() - began < _LEAST_S:
        started = time.perf_counter()
        once()
        # CUDA runs asynchronously: without waiting, only the launches are timed.
        _settle()
        times.append(time.perf_counter() - started)
    return statistics.median_high(times)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
