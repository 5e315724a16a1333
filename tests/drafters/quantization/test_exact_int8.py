"""Products of int8 targets: sums of integers, the same for a row in every company and in every kernel."""

import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from outrider_drafters.quantization import codes
from outrider_drafters.quantization.codes import ExactInt8Codes, PackedInt8Codes, code_product, packed_product

from ...marks import needs_int8

pytestmark = needs_int8
SHAPES = [(1, 1), (7, 5), (65, 33), (128, 513), (100, 2048), (64, 8960), (512, 640)]  # [n, k]
VALUES = {
    "random": lambda *size: torch.randint(-127, 128, size),
    "extremes": lambda *size: torch.randint(0, 2, size) * 254 - 127,
    "all 127": lambda *size: torch.full(size, 127),
    "of one sign": lambda *size: torch.full(size, -127),
}


@pytest.fixture(params=[False, True], ids=["as torch packs", "all packed"], autouse=True)
def packed(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(codes, "_WORTH_PACKING", 0)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_integers_of_64_bits(shape, values):
    torch.manual_seed(0)
    (n, k), make = shape, VALUES[values]
    weight = make(n, k)
    weight[0] = -128  # as int8 allows
    matrix = ExactInt8Codes(weight.to(torch.int8), torch.ones(n, dtype=torch.bfloat16))
    product = packed_product(code_product(matrix))
    for count in (0, 1, 2, 3, 8, 17, 33):
        x = make(count, k)
        x[:, :1] = 127  # so that a row's scale is 1
        wanted = (x @ weight.t()).float()
        assert torch.equal(product(x.float()), wanted)
        assert torch.equal(matrix.multiply(x.float()), wanted)


def test_a_row_is_the_same_in_every_company():
    x, weight = torch.randn(40, 640) * torch.logspace(-10, 10, 40)[:, None], torch.randn(512, 640)
    matrix = ExactInt8Codes.rounded(weight)
    alone = torch.cat([matrix.multiply(row[None]) for row in x])
    both = packed_product(code_product(matrix, ExactInt8Codes.rounded(weight * 3)))
    for multiply in (matrix.multiply, PackedInt8Codes(*matrix.parts).multiply, lambda x: both(x)[:, :512]):
        for count in (1, 7, 40):
            assert torch.equal(torch.cat([multiply(part) for part in torch.split(x, count)]), alone)
    near = x @ weight.t()
    assert ((alone - near).norm(dim=1) / near.norm(dim=1)).max() < 0.03


def test_what_is_no_number_stays_none():
    x = torch.ones(3, 640)
    x[0, 5], x[1, 6] = float("nan"), float("inf")
    for product in (
        (matrix := ExactInt8Codes.rounded(torch.ones(512, 640))).multiply,
        packed_product(code_product(matrix)),
    ):
        assert product(x).isfinite().all(dim=1).tolist() == [False, False, True]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="for x86")
def test_kernels_that_saturate_are_noticed():
    for isa, exact in (("DEFAULT", "True"), ("AVX2", "False")):
        assert is_exact_with(isa) == exact


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="for x86")
def test_without_amx_packed_products_have_a_kernel():
    script = "import torch; from outrider_drafters.quantization.codes import ExactInt8Codes as I, PackedInt8Codes as P"
    script += "; P(*I.rounded(torch.ones(512, 640)).parts).multiply(torch.ones(2, 640))"
    made = run(script, ONEDNN_MAX_CPU_ISA="AVX512_CORE_VNNI", ONEDNN_VERBOSE="1")
    assert "brg_matmul" in made
    assert "ref_int8" not in made  # hundreds of times as slow


@cache  # how this process packs is nothing to that one
def is_exact_with(isa: str) -> str:
    script = "from outrider_drafters.quantization.codes import has_exact_int8; print(has_exact_int8())"
    return run(script, ONEDNN_MAX_CPU_ISA=isa).strip()


def run(script: str, **changes: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **changes}, capture_output=True, text=True)
    return done.stdout or done.stderr
