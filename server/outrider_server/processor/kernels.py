"""What a target's pass on a processor computes beside its products, compiled by Numba: a call for several steps.

Of an int8 target each step gives a row the bits that FusedDecoder's own steps give it: sums and functions in float64,
rounded once, all else rounded where torch rounds.

Rows that go into a product are of one of three types, for which each step is compiled anew: codes, uint8 about 128,
each row with a scale; bfloat16, as the bits of uint16; float32. The scale of the latter two is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload

# Any: numba's arguments are arrays of one type each, which it finds at the first call.
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_SUMS = {"reassoc", "contract", "nsz"}  # float64 alone: what another order changes, rounding to float32 takes away
_TILE = 8  # rows of queries of a head meet the same keys while these are in the processor's first cache,
_KEYS = 8  # so many at a time


def _compiled(**flags: Any) -> Callable[[_Kernel], _Kernel]:
    def compiled(kernel: _Kernel) -> _Kernel:
        options = {"nogil": True, "error_model": "numpy", **flags}
        try:
            function: _Kernel = njit(cache=True, **options)(kernel)
        except RuntimeError:  # no directory to keep the machine code in
            function = njit(**options)(kernel)
        return function

    return compiled


@intrinsic  # type: ignore[untyped-decorator] # Numba's decorators have no types
def _pointer(_context: Any, _address: Any, like: Any) -> Any:
    """Turn an address (int64) into a pointer to the type of an array."""

    def inttoptr(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), inttoptr


def _bitcast(source: Any, target: Any) -> Any:
    def cast(_context: Any, _value: Any) -> Any:
        def bitcast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return target(source), bitcast

    return intrinsic(cast)


_float_of, _bits_of = _bitcast(types.uint32, types.float32), _bitcast(types.float32, types.uint32)


def _wide(_value: Any) -> Any:
    """Return a value as float32."""


def _narrow(_value: Any, _like: Any) -> Any:
    """Round a float32 to the type of an array."""


@overload(_wide, strict=False)  # type: ignore[untyped-decorator]
def _wide_of(_value: Any) -> Any:
    if _value == types.uint16:
        return lambda _value: _float_of(np.uint32(_value) << np.uint32(16))
    return lambda _value: _value


@overload(_narrow, strict=False)  # type: ignore[untyped-decorator]
def _narrow_of(_value: Any, _like: Any) -> Any:
    def rounded(_value: Any, _like: Any) -> Any:
        bits = _bits_of(_value)  # half to even; the NaN of arithmetic stays one
        return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))

    return rounded if _like.dtype == types.uint16 else lambda _value, _like: _value


@_compiled(fastmath=_SUMS)
def _exponentials(x: Any, powers: Any, power_bits: Any) -> None:
    """Replace x float64 by its exponentials; `powers` is a view of `power_bits`, as long as x.

    The last bit may be wrong: after Cody and Waite, e**x = 2**k * e**r with a Taylor polynomial of degree 12.
    """
    for i in range(len(x)):
        bounded = min(max(x[i], -709.0), 709.0)  # of the first k is -1023, whose bits are those of 0
        k = np.rint(bounded * 1.4426950408889634)
        r = (bounded - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
        power_bits[i] = (np.int64(k) + 1023) << 52
        series = 1.0 / 479001600.0
        series = series * r + 1.0 / 39916800.0
        series = series * r + 1.0 / 3628800.0
        series = series * r + 1.0 / 362880.0
        series = series * r + 1.0 / 40320.0
        series = series * r + 1.0 / 5040.0
        series = series * r + 1.0 / 720.0
        series = series * r + 1.0 / 120.0
        series = series * r + 1.0 / 24.0
        series = series * r + 1.0 / 6.0
        series = series * r + 0.5
        series = series * r + 1.0
        x[i] = series * r + 1.0
    for i in range(len(x)):
        x[i] *= powers[i]


def _put(_row: Any, _out: Any) -> Any:
    """Round a row float32 to the type of a product's rows; return its scale."""


@overload(_put, strict=False)  # type: ignore[untyped-decorator]
def _put_of(_row: Any, _out: Any) -> Any:
    def coded(_row: Any, _out: Any) -> Any:
        most = np.float32(0)
        broken = np.float32(0)
        for i in range(len(_row)):
            most = max(most, abs(_row[i]))
            broken += _row[i] * np.float32(0)  # NaN of NaN and of infinity: a product's whole row is to be no number
        scale = max(most / np.float32(127), np.finfo(np.float32).tiny) + broken
        for i in range(len(_row)):
            _out[i] = np.uint8(np.int32(np.rint(_row[i] / scale)) + 128)
        return scale

    def rounded(_row: Any, _out: Any) -> Any:
        for i in range(len(_row)):
            _out[i] = _narrow(_row[i], _out)
        return np.float32(1)

    return coded if _out.dtype == types.uint8 else rounded


@_compiled()
def put(x: Any, out: Any, scales: Any) -> None:
    """Round rows x [n, k] float32 to `out` [.., k], the rows of a product, with scales [n]."""
    for i in range(len(x)):
        scales[i] = _put(x[i], out[i])


@_compiled(fastmath=_SUMS)
def _inverse_rms(row: Any, eps: float) -> Any:
    total = 0.0
    for i in range(len(row)):
        total += np.float64(row[i]) * np.float64(row[i])
    return 1.0 / np.sqrt(total / len(row) + eps)


@_compiled()
def _norm(row: Any, weight: Any, eps: float, out: Any) -> None:
    by = _inverse_rms(row, eps)
    for i in range(len(row)):
        out[i] = np.float32(np.float64(row[i]) * by * weight[i])


@_compiled()
def norm(x: Any, weight: Any, eps: float, normed: Any, out: Any, scales: Any) -> None:
    """Norm rows x [n, hidden] with weight [hidden] float64 to `normed`, and round them to `out` and scales."""
    for i in range(len(x)):
        _norm(x[i], weight, eps, normed[i])
        scales[i] = _put(normed[i], out[i])


@_compiled()
def add_norm(product: Any, of_rows: Any, x: Any, weight: Any, eps: float, normed: Any, out: Any, scales: Any) -> None:
    """Add product * of_rows to x, and do as norm()."""
    for i in range(len(x)):
        for j in range(x.shape[1]):
            x[i, j] = _wide(product[i, j]) * of_rows[i] + x[i, j]
        _norm(x[i], weight, eps, normed[i])
        scales[i] = _put(normed[i], out[i])


@_compiled()
def gated(product: Any, of_rows: Any, out: Any, scales: Any) -> None:
    """Round silu(gate) * up to `out` and scales; product * of_rows are rows [gate, up]."""
    n, inner = len(of_rows), product.shape[1] // 2
    negative = np.empty(inner, np.float64)
    bits = np.empty(inner, np.int64)
    powers = bits.view(np.float64)
    row = np.empty(inner, np.float32)
    for i in range(n):
        for j in range(inner):
            row[j] = _wide(product[i, j]) * of_rows[i]
            negative[j] = -np.float64(row[j])
        _exponentials(negative, powers, bits)
        for j in range(inner):
            gate = np.float32(np.float64(row[j]) / (1.0 + negative[j]))
            row[j] = gate * (_wide(product[i, inner + j]) * of_rows[i])
        scales[i] = _put(row, out[i])


@_compiled()
def rotate(
    product: Any, of_rows: Any, bias: Any, norms: Any, eps: float, cos: Any, sin: Any, query: Any, key: Any, value: Any
) -> None:
    """Divide product * of_rows + bias into rotated query and key, and value: [n, heads, dim] each.

    `bias` [out] or [0], `norms` [2, dim] float64 of the heads of queries and of keys, or [0, dim]. cos and sin [n, dim]
    with the sign of rotate_half in sin.
    """
    n, heads, dim = query.shape
    kv_heads, half = key.shape[1], dim // 2
    head = np.empty(dim, np.float32)
    for i in range(n):
        for number in range(heads + 2 * kv_heads):
            first = number * dim
            for j in range(dim):
                head[j] = _wide(product[i, first + j]) * of_rows[i]
            if len(bias) > 0:
                for j in range(dim):
                    head[j] += bias[first + j]
            if number >= heads + kv_heads:
                value[i, number - heads - kv_heads] = head
                continue
            if len(norms) > 0:
                _norm(head, norms[0 if number < heads else 1], eps, head)
            out = query[i, number] if number < heads else key[i, number - heads]
            for j in range(half):
                out[j] = head[j] * cos[i, j] + head[j + half] * sin[i, j]
                out[j + half] = head[j + half] * cos[i, j + half] + head[j] * sin[i, j + half]


@_compiled()
def store(key: Any, value: Any, places: Any, layer: int, head_stride: int, stored: Any) -> None:
    """Write rows of keys and values [n, kv_heads, dim] of a layer where `places` [m, 4] says, in the type of `stored`.

    Each is number of the row, addresses of its key and value in layer 0, and bytes from layer to layer.
    """
    for place in range(len(places)):
        row, keys, values, step = places[place]
        for h in range(key.shape[1]):
            offset = layer * step + stored.itemsize * h * head_stride
            new_key = carray(_pointer(keys + offset, stored), (key.shape[2],))
            new_value = carray(_pointer(values + offset, stored), (key.shape[2],))
            for d in range(key.shape[2]):
                new_key[d] = _narrow(key[row, h, d], stored)
                new_value[d] = _narrow(value[row, h, d], stored)


@_compiled(fastmath=_SUMS)
def _multiply(a: Any, b: Any, c: Any, first: int) -> None:
    """Add the product of a [.., inner] and b[:, first : first + columns] to c [rows, columns]; inner is _KEYS."""
    for p in range(0, _KEYS, 8):
        b0, b1 = b[p, first : first + c.shape[1]], b[p + 1, first : first + c.shape[1]]
        b2, b3 = b[p + 2, first : first + c.shape[1]], b[p + 3, first : first + c.shape[1]]
        b4, b5 = b[p + 4, first : first + c.shape[1]], b[p + 5, first : first + c.shape[1]]
        b6, b7 = b[p + 6, first : first + c.shape[1]], b[p + 7, first : first + c.shape[1]]
        for t in range(len(c)):
            sums = c[t]
            a0, a1, a2, a3 = a[t, p], a[t, p + 1], a[t, p + 2], a[t, p + 3]
            a4, a5, a6, a7 = a[t, p + 4], a[t, p + 5], a[t, p + 6], a[t, p + 7]
            for j in range(len(sums)):
                sums[j] += (a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j]) + (
                    a4 * b4[j] + a5 * b5[j] + a6 * b6[j] + a7 * b7[j]
                )


@_compiled()
def _widen(stored: Any, first: int, stride: int, n: int, wide: Any) -> None:
    """Copy n stored rows, so many values apart, to wide [.., k]."""
    for i in range(n):
        # Of slices, not of what they are cut from: the compiler then sees that it may take eight values at a time.
        row, out = stored[first + i * stride : first + i * stride + wide.shape[1]], wide[i]
        for j in range(len(out)):
            out[j] = _wide(row[j])


@_compiled(fastmath=_SUMS)
def _multiply_turned(a: Any, b: Any, c: Any, first: int, columns: int) -> None:
    """Write the product of a [rows, k] and b[:, first : first + k], turned, to c, whose room is a multiple of 4."""
    inner = a.shape[1]
    for j in range(0, columns, 4):
        b0, b1 = b[j, first : first + inner], b[j + 1, first : first + inner]
        b2, b3 = b[j + 2, first : first + inner], b[j + 3, first : first + inner]
        for t in range(len(a)):
            row = a[t]
            sum0 = sum1 = sum2 = sum3 = a.dtype.type(0)
            for p in range(inner):
                sum0 += row[p] * b0[p]
                sum1 += row[p] * b1[p]
                sum2 += row[p] * b2[p]
                sum3 += row[p] * b3[p]
            c[t, j], c[t, j + 1], c[t, j + 2], c[t, j + 3] = sum0, sum1, sum2, sum3


@_compiled(fastmath=_SUMS)
def _softmax(scores: Any, powers: Any, bits: Any, weights: Any) -> None:
    most = scores[0]
    for k in range(len(scores)):
        most = max(most, scores[k])
    for k in range(len(scores)):
        scores[k] -= most
    _exponentials(scores, powers, bits)
    total = 0.0
    for k in range(len(scores)):
        total += scores[k]
    for k in range(len(scores)):
        weights[k] = scores[k] / total


@_compiled()
def _score(queries: Any, runs: Any, layer: int, strides: Any, stored: Any, wide: Any, scores: Any) -> None:
    """Multiply queries [kv_heads, n, dim] with the keys of runs: scores [kv_heads, .., keys]."""
    row_stride, head_stride, kv_heads = strides
    at = 0
    for run in range(len(runs)):
        count = runs[run, 3]
        rows = carray(_pointer(runs[run, 0] + layer * runs[run, 2], stored), (count * row_stride,))
        for start in range(0, count, _KEYS):
            keys = min(_KEYS, count - start)
            _widen(rows, start * row_stride, row_stride, keys, wide)
            for head in range(kv_heads):
                _multiply_turned(queries[head], wide, scores[head, :, at:], head * head_stride, keys)
            at += keys


@_compiled()
def _mix(weights: Any, runs: Any, layer: int, strides: Any, stored: Any, wide: Any, sums: Any) -> None:
    """Add values of runs, multiplied with weights [kv_heads, .., keys], to sums [kv_heads, n, dim]."""
    row_stride, head_stride, kv_heads = strides
    at = 0
    for run in range(len(runs)):
        count = runs[run, 3]
        rows = carray(_pointer(runs[run, 1] + layer * runs[run, 2], stored), (count * row_stride,))
        for start in range(0, count, _KEYS):
            keys = min(_KEYS, count - start)
            _widen(rows, start * row_stride, row_stride, keys, wide)
            wide[keys:] = 0  # the weights behind are the next run's
            for head in range(kv_heads):
                _multiply(weights[head, :, at:], wide, sums[head], head * head_stride)
            at += keys


@_compiled()
def _hide(scores: Any, committed: int, seen: Any, position: int, positions: Any, window: int) -> None:
    """Take keys from a row of scores that it does not see: those behind its window, and others of its own pass."""
    if window > 0:
        scores[: min(max(position - window + 1, 0), committed)] = -np.inf
    for k in range(len(seen)):
        if seen[k] == 0 or (window > 0 and position - positions[k] >= window):
            scores[committed + k] = -np.inf


@_compiled()
def attend(
    query: Any,
    tasks: Any,
    segments: Any,
    runs: Any,
    visible: Any,
    positions: Any,
    layer: int,
    strides: Any,
    window: int,
    scale: float,
    stored: Any,
    number: Any,
    out: Any,
) -> None:
    """Attend from query [N, heads, dim] to keys of the type of `stored`, into `out`, computing in that of `number`.

    tasks [t, 3]: segment, and first and last + 1 of its queries of each head of keys. segments [s, 6]: first row, rows,
    committed rows, first run, runs, first of `visible` (own rows seen by each). runs [r, 4]: addresses of keys and of
    values in layer 0, bytes from layer to layer, keys. strides: values from row to row and from head to head; kv_heads.
    """
    (_, heads, dim), kv_heads = query.shape, strides[2]
    group = heads // kv_heads
    wide = np.zeros((_KEYS, (kv_heads - 1) * strides[1] + dim), number.dtype)
    for task in range(len(tasks)):
        segment, task_begin, task_end = tasks[task]
        first, rows, committed, first_run, num_runs, first_seen = segments[segment]
        own_runs, num_keys = runs[first_run : first_run + num_runs], committed + rows
        scores = np.empty((kv_heads, _TILE, num_keys + _KEYS), np.float64)
        weights = np.zeros(scores.shape, number.dtype)
        bits = np.empty(num_keys, np.int64)
        for begin in range(task_begin, task_end, _TILE):
            size = min(_TILE, task_end - begin)
            queries = np.empty((kv_heads, size, dim), number.dtype)
            sums = np.zeros(queries.shape, number.dtype)
            for head in range(kv_heads):
                for t in range(size):
                    row, member = (begin + t) // group, (begin + t) % group
                    for d in range(dim):
                        queries[head, t, d] = np.float64(query[first + row, head * group + member, d]) * scale
            _score(queries, own_runs, layer, strides, stored, wide, scores)
            for head in range(kv_heads):
                for t in range(size):
                    row = (begin + t) // group
                    seen = visible[first_seen + row * rows : first_seen + (row + 1) * rows]
                    own = positions[first : first + rows]
                    _hide(scores[head, t], committed, seen, own[row], own, window)
                    _softmax(scores[head, t, :num_keys], bits.view(np.float64), bits, weights[head, t])
            _mix(weights, own_runs, layer, strides, stored, wide, sums)
            for head in range(kv_heads):
                for t in range(size):
                    row, member = (begin + t) // group, (begin + t) % group
                    for d in range(dim):
                        out[first + row, head * group + member, d] = np.float32(sums[head, t, d])
