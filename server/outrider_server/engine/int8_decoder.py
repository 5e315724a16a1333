"""An int8 target's forward pass on a processor: library products of codes, and one compiled step between each two.

Its bits are FusedDecoder's, which is its plain path: there every step is some calls into torch, which cost more than
what they compute. Keys and values are read where they lie, by address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.processor import padded_rows
from outrider_drafters.quantization.codes import code_product
from outrider_drafters.readers.checkpoint import release
from outrider_server.engine.attention import FlatBatch, SlotAttention
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.hf_model import BatchInvariance, int8_codes
from outrider_server.int8 import kernels

Floats = NDArray[np.float32]
Norm = tuple[NDArray[np.float64], float]  # weight and epsilon
Product = Callable[[Tensor], Tensor]  # as code_product() returns it
_WORTH_A_THREAD = 2**20  # multiplications, some 50 us: what it takes to wake one
_ROWS_OF_WEIGHTS = 12  # rows that take as long to multiply with weights as these to read
_WORTH_TWO_THREADS = 24 * 2**20  # values times rows of a product: the second one sleeps, and takes some 50 us to wake
_QUERIES = 32  # of each head of keys, that one thread takes at least


class _Batch:
    """The rows of a pass, where their keys and values lie and what they see, in the kernels' tables."""

    def __init__(self, segments: Sequence[BatchSegment], heads: int, kv_heads: int, dim: int) -> None:
        assert segments[0].slot.shape.dtype == torch.float32  # the kernels take what lies at an address for it
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
            stride = 4 * slot.buffer.strides[0]
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

    def __init__(self, layer: Any) -> None:  # Any: transformers' layer
        attention, mlp = layer.self_attn, layer.mlp
        inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.qkv, self.out = _product(inputs), _product([attention.o_proj])
        self.gate_up, self.down = _product([mlp.gate_proj, mlp.up_proj]), _product([mlp.down_proj])
        self.norm, self.mlp_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        biases = [each.bias.detach().numpy() for each in inputs if each.bias is not None]
        norms = [_norm(each) for each in (attention.q_norm, attention.k_norm)] if hasattr(attention, "q_norm") else []
        # Of queries, keys and values before they are rotated: biases [out] or [0], norms [2, dim] or [0, dim].
        self.heads = (
            np.concatenate(biases) if biases else np.empty(0, np.float32),
            np.stack([weight for weight, _ in norms]) if norms else np.empty((0, attention.head_dim)),
            norms[0][1] if norms else 0.0,
        )
        # Mistral has one for all layers, Qwen one for some.
        self.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)) or 0
        self.scale = float(attention.scaling)


class Int8Decoder:
    """The whole model over a flat batch, as FusedDecoder is."""

    def __init__(self, model: Any) -> None:  # Any: a Llama or its kin, which share no typed base class
        inner, attention = model.model, model.model.layers[0].self_attn
        self._embedding, self._rotary = inner.embed_tokens, inner.rotary_emb
        self.layers = [_Layer(layer) for layer in inner.layers]
        self._norm, self._head = _norm(inner.norm), _product([model.lm_head])
        self._dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._inner: int = inner.layers[0].mlp.down_proj.in_features
        self._values = sum(each.numel() for each in inner.layers.parameters()) // (4 * len(self.layers))  # of a product

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        assert isinstance(slots, FlatBatch)
        batch = _Batch(slots.segments, self._heads, self._kv_heads, self._dim)
        n, last, states = batch.num_rows, len(self.layers), dict[int, Tensor]()
        listed = {index % (last + 1) for index in wanted if index != BEFORE_NORM}
        embedded = F.embedding(tokens, self._embedding.weight)
        angles, x = self._angles(embedded, positions), embedded.numpy()
        normed, hidden = np.empty_like(x), _CodedRows(n, x.shape[1])
        mixed, inner = _CodedRows(n, self._heads * self._dim), _CodedRows(n, self._inner)
        first = self.layers[0].norm
        _over_rows(x, lambda at: kernels.norm(x[at], *first, normed[at], *hidden.part(at)))
        with _one_thread() if self._values * (n + _ROWS_OF_WEIGHTS) < _WORTH_TWO_THREADS else nullcontext():
            for index, layer in enumerate(self.layers):
                if index in listed:
                    states[index] = torch.from_numpy(x.copy())
                self._attend(index, layer, batch, hidden, angles, mixed)
                _add_norm(x, mixed, layer.out, layer.mlp_norm, normed, hidden)
                _gate(hidden, layer.gate_up, inner)
                after = self.layers[index + 1].norm if index + 1 < last else self._norm
                _add_norm(x, inner, layer.down, after, normed, hidden)
        states |= {BEFORE_NORM: torch.from_numpy(x), last: torch.from_numpy(normed)}
        if keep is not None:
            hidden = hidden.picked(keep.numpy())
        count = len(hidden.scales)
        logits = torch.from_numpy(hidden.times(self._head)[:count]).mul_(torch.from_numpy(hidden.scales)[:, None])
        return logits, {index: states[index if index == BEFORE_NORM else index % (last + 1)] for index in wanted}

    def _angles(self, embedded: Tensor, positions: Tensor) -> tuple[Floats, Floats]:
        """Return cos and sin [n, dim], with the sign of rotate_half in sin."""
        with BatchInvariance():
            cos, sin = self._rotary(embedded[None], position_ids=positions[None])
        half = self._dim // 2
        return cos[0].numpy(), torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1).numpy()

    def _attend(
        self,
        index: int,
        layer: _Layer,
        batch: _Batch,
        hidden: _CodedRows,
        angles: tuple[Floats, Floats],
        mixed: _CodedRows,
    ) -> None:
        """Let the rows of a layer see each other and what is stored; round what they get to `mixed`."""
        product, (cos, sin), n = hidden.times(layer.qkv), angles, batch.num_rows
        query = np.empty((n, self._heads, self._dim), np.float32)
        key, value = np.empty((2, n, self._kv_heads, self._dim), np.float32)

        def rotate(at: slice) -> None:
            kernels.rotate(
                product[at], hidden.scales[at], *layer.heads, cos[at], sin[at], query[at], key[at], value[at]
            )

        _over_rows(product[:n], rotate)
        kernels.store(key, value, batch.places, index, batch.strides[1])
        answer = np.empty_like(query)
        window = layer.window if batch.furthest >= layer.window else 0
        _together(
            [
                partial(kernels.attend, query, tasks, *batch.tables, index, batch.strides, window, layer.scale, answer)
                for tasks in batch.parts
            ]
        )
        rows = answer.reshape(n, -1)
        _over_rows(rows, lambda at: kernels.to_codes(rows[at], *mixed.part(at)))


class _CodedRows:
    """Rows as codes [padded, k] uint8 about 128, and their scales [n]."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.codes = np.empty((padded_rows(num_rows), width), np.uint8)
        self.scales = np.empty(num_rows, np.float32)

    def part(self, at: slice) -> tuple[NDArray[np.uint8], Floats]:
        """Return codes and scales of some rows."""
        return self.codes[at], self.scales[at]

    def picked(self, rows: NDArray[np.int64]) -> _CodedRows:
        """Return a copy of some rows."""
        answer = _CodedRows(len(rows), self.codes.shape[1])
        answer.codes[: len(rows)], answer.scales[:] = self.codes[rows], self.scales[rows]
        return answer

    def times(self, product: Product) -> Floats:
        """Return the product [padded, out], yet without the scales of the rows."""
        return product(torch.from_numpy(self.codes)).numpy()


def _add_norm(x: Floats, rows: _CodedRows, product: Product, norm: Norm, normed: Floats, hidden: _CodedRows) -> None:
    """Add the product of `rows` to x; norm the sum, and round it."""
    added = rows.times(product)
    _over_rows(
        x,
        lambda at: kernels.add_norm(added[at], rows.scales[at], x[at], *norm, normed[at], *hidden.part(at)),
    )


def _gate(rows: _CodedRows, product: Product, inner: _CodedRows) -> None:
    """Round silu(gate) * up to `inner`, where the product of `rows` is gate and up."""
    gates, count = rows.times(product), len(rows.scales)
    _over_rows(gates[:count], lambda at: kernels.gated(gates[at], rows.scales[at], *inner.part(at)))


def _over_rows(like: Floats, step: Callable[[slice], None]) -> None:
    """Take the step for all rows, many of them by several threads."""
    count = max(1, min(torch.get_num_threads(), 16 * like.size // _WORTH_A_THREAD))
    cuts = [len(like) * part // count for part in range(count + 1)]
    _together([partial(step, slice(begin, end)) for begin, end in pairwise(cuts)])


def _together(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls that hold no lock of the interpreter, the last one here and the others in threads beside."""
    others = [_threads().submit(call) for call in calls[:-1]]
    calls[-1]()
    for other in others:
        other.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="int8")


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of a thread that first computes in the meantime, too
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _product(layers: Sequence[nn.Linear]) -> Product:
    """Return the product of codes with the layers of one input, whose own weights' memory is given back."""
    product = code_product(*(codes for layer in layers if (codes := int8_codes(layer.weight)) is not None))
    for layer in layers:
        release(layer.weight)
    return product


def _norm(norm: Any) -> Norm:  # Any: transformers' class has no types
    return norm.weight.detach().double().numpy(), norm.variance_epsilon


def int8_decoder(model: PreTrainedModel) -> Int8Decoder | None:
    """Return the decoder of an int8 model that FusedDecoder serves; None where it has no step for a layer."""
    inputs = ("q_proj", "k_proj", "v_proj")
    plain = all(
        module.bias is None or name.endswith(inputs)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    )
    return Int8Decoder(model) if plain else None
