"""Packed products: the plain ones' results for any number of rows, and plain ones where weights cannot be packed."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from outrider_drafters.blocks.packed_linear import PackedLinear, can_pack
from outrider_drafters.processor import padded_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (11,), (12,), (13,), (16,), (100,), (7, 5), (8, 2)])
@torch.inference_mode()
def test_products_are_the_plain_ones(shape, with_bias, dtype):
    torch.manual_seed(1)
    weight, bias = torch.randn(20, 24).to(dtype), torch.randn(20).to(dtype) if with_bias else None
    x, residual = torch.randn(*shape, 24).to(dtype), torch.randn(*shape, 40).to(dtype)[..., 20:]  # of wider rows
    linear = PackedLinear(weight, bias)
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias))
    # Added before the product is rounded, the residual may cancel what rounding left of it.
    close = {"atol": 0.05, "rtol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(linear.plus(x, residual), residual + F.linear(x, weight, bias), **close)


def test_other_weights_stay_as_they_are():
    weight = torch.randn(20, 24)
    assert not can_pack(weight.half())
    assert not can_pack(weight.to("meta"))
    half = PackedLinear(weight.half())
    x = torch.randn(40, 24).half()
    assert torch.equal(half(x), F.linear(x, weight.half()))


@pytest.mark.parametrize(("rows", "is_packed"), [(8, False), (600, True), (40_000, False)])
def test_left_to_itself_it_packs_weights_that_are_worth_a_copy(rows, is_packed):
    weight, x, residual = torch.randn(rows, 512), torch.randn(11, 512), torch.randn(11, rows)
    linear = PackedLinear(weight, packed=None)
    assert linear.weight is weight
    assert (linear._packed is not None) == (is_packed and can_pack(weight))
    assert linear.by_onednn == (rows > 8 and can_pack(weight))
    for rows_of_x in (1, 10, 11):
        product = F.linear(x[:rows_of_x], weight)
        torch.testing.assert_close(linear(x[:rows_of_x]), product, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(linear.plus(x[:1], residual[:1]), residual[:1] + product[:1], atol=1e-3, rtol=1e-3)


@given(st.integers(1, 100_000))
def test_padding_is_small_and_sizes_are_few(num_rows):
    padded = padded_rows(num_rows)
    assert 0 <= padded - num_rows < max(8, num_rows / 8 + 1)
    assert padded_rows(padded) == padded
