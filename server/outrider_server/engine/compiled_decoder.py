"""A target's forward pass on a processor: library products, and one compiled step between each two.

FusedDecoder is its plain path, where every step is some calls into torch, which cost more than what they compute: in
int8 bit for bit, else but for rounding. Keys and values are read where they lie, by address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from ctypes import CDLL, CFUNCTYPE, c_void_p
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.processor import padded_rows
from outrider_server.engine.attention import FlatBatch, SlotAttention
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.fused_decoder import FusedDecoder, FusedLayer, Int8Linear
from outrider_server.engine.hf_model import BatchInvariance, holds_int8
from outrider_server.processor import kernels

Floats = NDArray[np.float32]
Values = NDArray[Any]  # float32, bfloat16 as uint16, or codes
Norm = tuple[NDArray[np.float64], float]  # weight and epsilon
Product = Callable[[Tensor], Tensor]  # as code_product() returns it, or a PackedLinear
_WORTH_A_THREAD = 2**20  # multiplications, some 50 us: what it takes to wake one
_ROWS_OF_WEIGHTS = 12  # rows that take as long to multiply with weights as these to read
_WORTH_TWO_THREADS = 24 * 2**20  # values times rows of a product: a second thread that sleeps takes some 50 us to wake
_QUERIES = 32  # of each head of keys, that one thread takes at least
_REGION = CFUNCTYPE(None, c_void_p)
_FEW_ROWS = 8  # of a session: with more, torch's attention in float32 and bfloat16 is faster than the compiled one


Attention = Callable[[int, Floats, Floats, Floats, AttentionCall], Floats]
_TYPES: dict[torch.dtype, type[np.generic]] = {torch.float32: np.float32, torch.bfloat16: np.uint16}


class _Batch:
    """The rows of a pass, where their keys and values lie and what they see, in the kernels' tables."""

    def __init__(self, segments: Sequence[BatchSegment], heads: int, kv_heads: int, dim: int) -> None:
        rows, tasks, costs = list[tuple[int, ...]](), list[tuple[int, ...]](), [0]
        runs, places, seen = list[tuple[int, ...]](), list[tuple[int, ...]](), list[NDArray[np.bool_]]()
        first = num_seen = 0
        for number, segment in enumerate(segments):
            slot, count = segment.slot, segment.num_rows
            own, begun = slot.length - slot.start, len(runs)
            for link in () if slot.prefix is None else slot.prefix.chain():
                runs += link.buffer.runs(0, len(link.tokens))
            runs += slot.buffer.runs(0, own + count)
            rows.append((first, count, slot.length, begun, len(runs) - begun, num_seen))
            stride = slot.shape.dtype.itemsize * slot.buffer.strides[0]
            at = first
            for keys, values, step, length in slot.buffer.runs(own, own + count):
                places += [(at + i, keys + i * stride, values + i * stride, step) for i in range(length)]
                at += length
            seen.append(segment.visible().ravel())
            queries = count * heads // kv_heads
            for begin in range(0, queries, _QUERIES):
                end = min(begin + _QUERIES, queries)
                tasks.append((number, begin, end))
                costs.append((end - begin) * kv_heads * (slot.length + count) * dim)
            first, num_seen = first + count, num_seen + count * count
        self.num_rows = first
        self.positions = np.array([p for segment in segments for p in segment.positions], dtype=np.int64)
        self.furthest = int(self.positions.max())
        self.tables = np.array(rows), np.array(runs), np.concatenate(seen).view(np.uint8), self.positions
        self.places, self.strides = np.array(places), (*segments[0].slot.buffer.strides, kv_heads)
        self.parts = _divided(np.array(tasks), np.cumsum(costs))


def _divided(tasks: NDArray[np.int64], costs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide tasks, of which the first i cost costs[i], among threads."""
    count = max(1, min(torch.get_num_threads(), int(costs[-1]) // _WORTH_A_THREAD))
    cuts = np.searchsorted(costs, np.linspace(0, costs[-1], count + 1))
    return [tasks[begin:end] for begin, end in pairwise(cuts) if begin < end]


class _Layer:
    """What one decoder layer multiplies with and norms by."""

    def __init__(self, layer: Any, fused: FusedLayer) -> None:  # Any: transformers' layer
        attention = layer.self_attn
        self.qkv, self.out, self.gate_up, self.down = map(_product, (fused.qkv, fused.out, fused.gate_up, fused.down))
        self.norm, self.mlp_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        bias = fused.qkv.bias if isinstance(fused.qkv, Int8Linear) else None  # others add their own
        norms = [_norm(each) for each in (attention.q_norm, attention.k_norm)] if hasattr(attention, "q_norm") else []
        # Of queries, keys and values before they are rotated: biases [out] or [0], norms [2, dim] or [0, dim].
        self.heads = (
            np.empty(0, np.float32) if bias is None else bias.numpy(),
            np.stack([weight for weight, _ in norms]) if norms else np.empty((0, attention.head_dim)),
            norms[0][1] if norms else 0.0,
        )
        self.call = fused.call


class CompiledDecoder:
    """The whole model over a flat batch, with the products of a FusedDecoder."""

    def __init__(self, fused: FusedDecoder) -> None:
        self.has_own_cores = False
        inner: Any = fused.model.model  # a Llama or its kin, which share no typed base class
        attention = inner.layers[0].self_attn
        self._embedding, self._rotary = inner.embed_tokens, inner.rotary_emb
        self.layers = list(map(_Layer, inner.layers, fused.layers))
        self._norm, self._head = _norm(inner.norm), _product(fused.head)
        self._dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._inner: int = inner.layers[0].mlp.down_proj.in_features
        self._dtype: torch.dtype = fused.model.dtype
        self._values = sum(each.numel() for each in inner.layers.parameters()) // (4 * len(self.layers))  # of a product
        self._is_int8 = holds_int8(fused.model)
        self._rows_type = np.uint8 if self._is_int8 else _TYPES[self._dtype]
        self._number = np.empty(0, np.float64 if self._is_int8 else np.float32)  # what attention computes in

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        assert isinstance(slots, FlatBatch)
        n, last, states = len(tokens), len(self.layers), dict[int, Tensor]()
        listed = {index % (last + 1) for index in wanted if index != BEFORE_NORM}
        embedded = F.embedding(tokens, self._embedding.weight).float()
        angles, x = self._angles(embedded, positions), embedded.numpy()
        normed, hidden = np.empty_like(x), self._rows(n, x.shape[1])
        mixed, inner = self._rows(n, self._heads * self._dim), self._rows(n, self._inner)
        attend = partial(self._attend, self._attention(slots), hidden, angles, mixed)
        first = self.layers[0].norm
        _over_rows(x, lambda at: kernels.norm(x[at], *first, normed[at], *hidden.part(at)))
        is_short = not self.has_own_cores and self._values * (n + _ROWS_OF_WEIGHTS) < _WORTH_TWO_THREADS
        with _one_thread() if is_short else nullcontext():
            for index, layer in enumerate(self.layers):
                if index in listed:
                    states[index] = torch.from_numpy(x.copy())
                attend(index, layer)
                _add_norm(x, mixed, layer.out, layer.mlp_norm, normed, hidden)
                _gate(hidden, layer.gate_up, inner)
                after = self.layers[index + 1].norm if index + 1 < last else self._norm
                _add_norm(x, inner, layer.down, after, normed, hidden)
        states |= {BEFORE_NORM: torch.from_numpy(x), last: torch.from_numpy(normed)}
        if keep is not None:
            hidden = hidden.picked(keep.numpy())
        logits = hidden.product(self._head)[: len(hidden.scales)]
        if self._is_int8:
            logits.mul_(torch.from_numpy(hidden.scales)[:, None])
        return logits, {
            index: states[index if index == BEFORE_NORM else index % (last + 1)].to(self._dtype) for index in wanted
        }

    def _rows(self, num_rows: int, width: int) -> _Rows:
        return _Rows(num_rows, width, self._rows_type)

    def _angles(self, embedded: Tensor, positions: Tensor) -> tuple[Floats, Floats]:
        """Return cos and sin [n, dim], with the sign of rotate_half in sin."""
        with BatchInvariance():
            cos, sin = self._rotary(embedded[None], position_ids=positions[None])
        half = self._dim // 2
        return cos[0].numpy(), torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1).numpy()

    def _attention(self, slots: FlatBatch) -> Attention:
        """Return what maps query, key and value [n, heads, dim] of a layer to rows [n, heads * dim]."""
        if not self._is_int8 and max(segment.num_rows for segment in slots.segments) > _FEW_ROWS:
            return partial(self._attend_by_torch, slots)
        batch = _Batch(slots.segments, self._heads, self._kv_heads, self._dim)
        return partial(self._attend_compiled, batch, np.empty(0, _TYPES[slots.segments[0].slot.shape.dtype]))

    def _attend_by_torch(
        self, slots: FlatBatch, index: int, query: Floats, key: Floats, value: Floats, call: AttentionCall
    ) -> Floats:
        rows = [torch.from_numpy(each).to(self._dtype).transpose(0, 1)[None] for each in (query, key, value)]
        mixed: Floats = slots.attend(index, rows[0], rows[1], rows[2], call).view(len(query), -1).float().numpy()
        return mixed

    def _attend_compiled(
        self,
        batch: _Batch,
        stored: Values,
        index: int,
        query: Floats,
        key: Floats,
        value: Floats,
        call: AttentionCall,
    ) -> Floats:
        kernels.store(key, value, batch.places, index, batch.strides[1], stored)
        answer = np.empty_like(query)
        window = call.window if call.window is not None and batch.furthest >= call.window else 0
        attend: Callable[..., None] = kernels.attend
        how = index, batch.strides, window, call.scaling, stored, self._number, answer
        _together([partial(attend, query, tasks, *batch.tables, *how) for tasks in batch.parts])
        return answer.reshape(len(query), -1)

    def _attend(
        self,
        attention: Attention,
        hidden: _Rows,
        angles: tuple[Floats, Floats],
        mixed: _Rows,
        index: int,
        layer: _Layer,
    ) -> None:
        """Let the rows of a layer see each other and what is stored; round what they get to `mixed`."""
        product, (cos, sin), n = hidden.times(layer.qkv), angles, len(hidden.scales)
        query = np.empty((n, self._heads, self._dim), np.float32)
        key, value = np.empty((2, n, self._kv_heads, self._dim), np.float32)

        def rotate(at: slice) -> None:
            kernels.rotate(
                product[at], hidden.scales[at], *layer.heads, cos[at], sin[at], query[at], key[at], value[at]
            )

        _over_rows(product[:n], rotate)
        rows = attention(index, query, key, value, layer.call)
        _over_rows(rows, lambda at: kernels.put(rows[at], *mixed.part(at)))


class _Rows:
    """Rows that go into a product [padded, k], in its type, and their scales [n]."""

    def __init__(self, num_rows: int, width: int, dtype: type[np.generic]) -> None:
        self.values: Values = np.empty((padded_rows(num_rows), width), dtype)
        self.scales = np.empty(num_rows, np.float32)

    def part(self, at: slice) -> tuple[Values, Floats]:
        """Return values and scales of some rows."""
        return self.values[at], self.scales[at]

    def picked(self, rows: NDArray[np.int64]) -> _Rows:
        """Return a copy of some rows."""
        answer = _Rows(len(rows), self.values.shape[1], self.values.dtype.type)
        answer.values[: len(rows)], answer.scales[:] = self.values[rows], self.scales[rows]
        return answer

    def product(self, with_weights: Product) -> Tensor:
        """Return the product [padded, out], yet without the scales of the rows."""
        rows = torch.from_numpy(self.values)
        return with_weights(rows.view(torch.bfloat16) if rows.dtype == torch.uint16 else rows)

    def times(self, with_weights: Product) -> Values:
        """Return the product as an array."""
        product = self.product(with_weights)
        return (product.view(torch.uint16) if product.dtype == torch.bfloat16 else product).numpy()


def _add_norm(x: Floats, rows: _Rows, product: Product, norm: Norm, normed: Floats, hidden: _Rows) -> None:
    """Add the product of `rows` to x; norm the sum, and round it."""
    added = rows.times(product)
    _over_rows(
        x,
        lambda at: kernels.add_norm(added[at], rows.scales[at], x[at], *norm, normed[at], *hidden.part(at)),
    )


def _gate(rows: _Rows, product: Product, inner: _Rows) -> None:
    """Round silu(gate) * up to `inner`, where the product of `rows` is gate and up."""
    gates, count = rows.times(product), len(rows.scales)
    _over_rows(gates[:count], lambda at: kernels.gated(gates[at], rows.scales[at], *inner.part(at)))


def _over_rows(like: Floats, step: Callable[[slice], None]) -> None:
    """Take the step for all rows, many of them by several threads."""
    count = max(1, min(torch.get_num_threads(), 16 * like.size // _WORTH_A_THREAD))
    cuts = [len(like) * part // count for part in range(count + 1)]
    _together([partial(step, slice(begin, end)) for begin, end in pairwise(cuts)])


def _together(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls that hold no lock of the interpreter, each in a thread of its own."""
    if len(calls) == 1:
        calls[0]()
    else:
        _team()(calls)


@cache
def _team() -> Callable[[Sequence[Callable[[], None]]], None]:
    """Return what makes calls in the threads of torch's products, which are awake; else in threads of a pool.

    Beside those of a pool they would wait on the same processors for the next product.
    """
    with suppress(OSError):  # not Linux
        # Not a line's last word: other files that are mapped may have any name.
        mapped = re.search(r"/.*/torch/lib/libgomp.*", os.fsdecode(Path("/proc/self/maps").read_bytes()))
        if mapped is not None:
            return partial(_in_region, CDLL(mapped[0]))
    return partial(_in_pool, ThreadPoolExecutor(thread_name_prefix="pass"))


def _in_pool(pool: ThreadPoolExecutor, calls: Sequence[Callable[[], None]]) -> None:
    for done in [pool.submit(call) for call in calls]:
        done.result()


def _in_region(openmp: CDLL, calls: Sequence[Callable[[], None]]) -> None:
    errors = list[BaseException]()

    def run(_data: object) -> None:
        try:
            # Within a region of another, and where the system makes no thread, there are fewer.
            for call in calls[openmp.omp_get_thread_num() :: openmp.omp_get_num_threads()]:
                call()
        except BaseException as error:
            errors.append(error)

    openmp.GOMP_parallel(_REGION(run), None, len(calls), 0)
    if errors:
        raise errors[0]


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of a thread that first computes in the meantime, too
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _product(linear: PackedLinear | Int8Linear) -> Product:
    if isinstance(linear, PackedLinear):
        return linear
    assert linear.of_codes is not None
    return linear.of_codes


def _norm(norm: Any) -> Norm:  # Any: transformers' class has no types
    return norm.weight.detach().double().numpy(), norm.variance_epsilon


def compiled_decoder(fused: FusedDecoder) -> CompiledDecoder | None:
    """Return the compiled form of a packed decoder; None where it has no step for a layer."""
    linears = [linear for layer in fused.layers for linear in (layer.out, layer.gate_up, layer.down)]
    if any(isinstance(linear, Int8Linear) and linear.bias is not None for linear in linears):
        return None
    return CompiledDecoder(fused)
