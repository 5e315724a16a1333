"""Packed products: the plain ones' results for any number of rows, and plain ones where weights cannot be packed."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, Rope
from outrider_drafters.blocks.packed_linear import PackedLinear, can_pack, padded_rows


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (11,), (12,), (13,), (16,), (100,), (7, 5), (8, 2)])
@torch.inference_mode()
def test_products_are_the_plain_ones(shape, with_bias):
    torch.manual_seed(1)
    weight, bias = torch.randn(20, 24), torch.randn(20) if with_bias else None
    x, residual = torch.randn(*shape, 24), torch.randn(*shape, 20)
    linear = PackedLinear(weight, bias)
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias))
    torch.testing.assert_close(linear.plus(x, residual), residual + F.linear(x, weight, bias))


def test_other_weights_stay_as_they_are():
    weight = torch.randn(20, 24)
    assert not can_pack(weight.bfloat16())
    assert not can_pack(weight.to("meta"))
    half = PackedLinear(weight.bfloat16())
    x = torch.randn(40, 24).bfloat16()
    assert torch.equal(half(x), F.linear(x, weight.bfloat16()))


@given(st.integers(1, 100_000))
def test_padding_is_at_most_an_eighth_and_sizes_are_few(num_rows):
    padded = padded_rows(num_rows)
    assert 0 <= padded - num_rows < max(8, num_rows / 8 + 1)
    assert padded_rows(padded) == padded


def test_larger_numbers_of_rows_never_take_fewer():
    sizes = [padded_rows(n) for n in range(1, 3000)]
    assert all(one <= other for one, other in pairwise(sizes))
    assert len(set(sizes)) < 80


@torch.inference_mode()
def test_a_packed_block_computes_what_the_plain_one_does():
    torch.manual_seed(2)
    shape = BlockShape(width=32, heads=4, kv_heads=2, head_dim=8, mlp=48)
    block = LlamaBlock(shape)
    plain, packed = (FusedBlock(block, packed=packed) for packed in (False, True))
    rope: Rope = shape.rope(torch.arange(4))
    for num_sequences in (1, 9, 50):
        x = torch.randn(num_sequences, 4, 32)
        torch.testing.assert_close(packed.self_attend(x, rope), plain.self_attend(x, rope), atol=1e-5, rtol=1e-4)
