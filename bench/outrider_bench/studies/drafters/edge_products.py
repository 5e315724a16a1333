"""Time of a product of few rows with a matrix, by type of weights: most of a drafter's time on the edge."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_bench.core.tables import ResultTable, table
from outrider_drafters.quantization.quantize import Weights, quantize
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight

SIZES = ((32768, 4096), (28672, 4096), (6144, 4096), (2048, 192), (1024, 192))  # of an 8B target (a quarter of its
# lm_head, gate and up, q k and v), and of the embedded one
ROWS = (1, 4, 8)
SECONDS = 0.25  # for one median


@dataclass(frozen=True, slots=True)
class Product:
    """Median time of [rows, width] by [outputs, width]; `num_bytes` of the matrix."""

    weights: str
    outputs: int
    width: int
    num_bytes: int
    ms_by_rows: dict[int, float]


def products(kinds: Sequence[str]) -> Iterator[Product]:
    """Measure one matrix at a time, with torch's current number of threads."""
    for outputs, width in SIZES:
        plain = torch.randn(outputs, width) * 0.02
        for kind in kinds:
            weight = _made(plain, cast(Weights, kind))
            size = weight.coded.num_bytes if isinstance(weight, QuantizedWeight) else weight.nbytes
            dtype = weight.dtype
            times = {rows: _median_ms(torch.randn(rows, width, dtype=dtype), weight) for rows in ROWS}
            yield Product(kind, outputs, width, size, times)


def products_table(made: Sequence[Product]) -> ResultTable:
    """Build a row per matrix and type of weights."""
    columns = ("matrix", "weights", "MB", *(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS))
    rows = []
    for p in made:
        times = (f"{ms:.3f}" for ms in p.ms_by_rows.values())
        rows.append([f"{p.outputs} x {p.width}", p.weights, f"{p.num_bytes / 1e6:.2f}", *times])
    return table("products with a matrix, median ms", columns, rows, keys=2)


def _made(plain: Tensor, kind: Weights) -> Tensor:
    match kind:
        case "float32":
            return plain
        case "bfloat16":
            return plain.bfloat16()
        case "int8" | "int4":
            return quantize(plain, kind)


@torch.inference_mode()
def _median_ms(x: Tensor, weight: Tensor) -> float:
    # The first product packs the codes of quantized weights.
    F.linear(x, weight)
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times) < 5:
        started = time.perf_counter()
        F.linear(x, weight)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)
