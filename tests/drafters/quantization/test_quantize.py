"""int8 and int4 weights: how near they are, what they do in a tensor's place, how they are stored."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock
from outrider_drafters.quantization.codes import Int4Codes, Int8Codes
from outrider_drafters.quantization.quantize import code_tensors, quantize, rebuild_weights
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_proto.errors import UsageError

KINDS = ("int8", "int4")
ERROR = {"int8": 0.02, "int4": 0.15}  # relative, on normal values


def relative(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((made - wanted).norm() / wanted.norm()).item()


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def plain() -> torch.Tensor:
    return torch.randn(48, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def weight(plain, kind) -> QuantizedWeight:
    return quantize(plain, kind)


def test_values_are_near(plain, weight, kind):
    assert relative(weight.values(), plain) < ERROR[kind]
    assert sum(part.nbytes for part in weight.coded.parts) < {"int8": 0.3, "int4": 0.2}[kind] * plain.nbytes


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 16, 17, 40])
def test_products_are_those_of_the_values(weight, rows):
    x = torch.randn(rows, 64)
    bias = torch.randn(48)
    torch.testing.assert_close(F.linear(x, weight, bias), F.linear(x, weight.values(), bias), atol=0.15, rtol=0.03)
    assert F.linear(x, weight).dtype == torch.float32


@pytest.mark.parametrize("has_bf16", [False, True])
def test_products_of_many_rows_on_every_processor(monkeypatch, weight, has_bf16):
    monkeypatch.setattr("outrider_drafters.quantization.codes.cpu_has_bf16", lambda: has_bf16)
    x = torch.randn(40, 64).bfloat16()
    made = weight.coded.multiply_many(x)
    assert made.dtype == torch.bfloat16
    assert relative(made.float(), x.float() @ weight.values().T) < 0.01


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 20), (16, 32), (17, 33), (63, 40), (48, 96), (3, 100)])
def test_every_size_is_right(kind, n, k):
    """Sizes that the kernels would read past are computed otherwise."""
    weight = quantize(torch.randn(n, k), kind)
    for rows in (1, 4, 9):
        x = torch.randn(rows, k)
        torch.testing.assert_close(F.linear(x, weight), x @ weight.values().T, atol=0.15, rtol=0.03)


@pytest.mark.parametrize("offset", [1, 8, 40])
def test_codes_and_rows_that_begin_anywhere(offset):
    codes = torch.randint(-127, 128, (64 * 64 + offset,), dtype=torch.int8)[offset:].view(64, 64)
    weight = QuantizedWeight(Int8Codes(codes, torch.ones(64).bfloat16()))
    x = torch.randn(4 * 64 + offset).bfloat16()[offset:].view(4, 64)
    assert relative(F.linear(x, weight).float(), x.float() @ codes.float().T) < 0.01


def test_rows_are_looked_up(weight):
    ids = torch.tensor([[1, 47], [1, 0]])
    assert torch.equal(F.embedding(ids, weight), weight.values()[ids])
    assert F.embedding(torch.empty(0, dtype=torch.long), weight).shape == (0, 64)


def test_rows_are_cut_and_joined_as_codes(weight):
    part = weight[5:21]
    assert isinstance(part, QuantizedWeight)
    assert torch.equal(part.values(), weight.values()[5:21])
    joined = torch.cat([weight, part])
    assert isinstance(joined, QuantizedWeight)
    assert torch.equal(joined.values(), torch.cat([weight.values(), part.values()]))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_any_other_operation_gets_the_values(weight, mode):
    with mode():
        values, x = weight.values(), torch.randn(3, 64)
        assert torch.equal(x @ weight.T, x @ values.T)
        assert torch.equal(weight[3], values[3])
        assert torch.equal(torch.stack([weight, weight]), torch.stack([values, values]))
        assert torch.equal(weight.sum(0), values.sum(0))
        assert torch.equal(weight + 1, values + 1)
        assert torch.equal(weight, values)
        assert weight.contiguous().numpy().tolist() == values.numpy().tolist()


def test_int4_falls_back_to_int8_where_it_does_not_divide():
    assert isinstance(quantize(torch.randn(48, 64), "int4").coded, Int4Codes)
    assert isinstance(quantize(torch.randn(48, 65), "int4").coded, Int8Codes)
    assert isinstance(quantize(torch.randn(47, 64), "int4").coded, Int8Codes)


def test_stored_and_read_again(tmp_path: Path, weight, kind):
    save_file({**code_tensors("a.weight", weight), "b": torch.ones(2)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names == {"a.weight", "b"}
    assert checkpoint.matrix("a.weight") == (48, 64)
    read = checkpoint.read("a.weight")
    assert isinstance(read, QuantizedWeight)
    assert torch.equal(read.values(), weight.values())
    assert torch.equal(F.linear(torch.ones(4, 64), read), F.linear(torch.ones(4, 64), weight))
    assert checkpoint.holds_codes


@pytest.mark.parametrize("spoilt", ["missing", "short", "type"])
def test_scales_that_do_not_fit_are_refused(weight, spoilt):
    parts = code_tensors("a.weight", weight)
    match spoilt:
        case "missing":
            del parts["a.weight.scale"]
        case "short":
            parts["a.weight.scale"] = parts["a.weight.scale"][:7]
        case "type":
            parts["a.weight.scale"] = parts["a.weight.scale"].float()
    with pytest.raises(UsageError, match=r"somewhere: a\.weight\.scale"):
        rebuild_weights(Path("somewhere"), parts)


def test_without_torchao_the_remedy_is_named(monkeypatch, plain):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UsageError, match=r"pip install 'outrider\[edge\]'"):
        quantize(plain, "int4")


@pytest.mark.slow  # it loads torchao
def test_int8_codes_are_those_of_torchao(plain):
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    plain = torch.cat((plain, torch.zeros(1, plain.shape[1])))  # a row without a largest value, too
    block = (1, plain.shape[1])
    scales, zeros = primitives.choose_qparams_affine(
        plain, primitives.MappingType.SYMMETRIC, block, torch.int8, scale_dtype=torch.bfloat16
    )
    codes = Int8Codes.rounded(plain)
    assert torch.equal(codes.scales, scales.flatten())
    assert torch.equal(codes.codes, primitives.quantize_affine(plain, block, scales.float(), zeros, torch.int8))


def test_reading_codes_needs_no_torchao(tmp_path: Path, plain):
    codes = code_tensors("a", quantize(plain, "int8")) | code_tensors("b", quantize(plain, "int4"))
    save_file(codes, tmp_path / "model.safetensors")
    program = (
        "import sys; sys.modules['torchao'] = None; from pathlib import Path; import torch\n"
        "from outrider_drafters.readers.checkpoint import Checkpoint\n"
        f"held = Checkpoint(Path({str(tmp_path)!r}))\n"
        "print(*((torch.ones(2, 64) @ held.read(name).T).shape[1] for name in 'ab'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "48 48\n"


def test_rows_are_cut_once(monkeypatch, kind):
    """int4 codes are repacked for every cut: far more work than a product."""
    shape = BlockShape(64, 4, 2, 16, 64)
    block = LlamaBlock(shape).requires_grad_(False)
    coded = {name: quantize(tensor, kind) for name, tensor in block.self_attn.state_dict().items()}
    block.self_attn.load_state_dict(coded, assign=True)
    cuts = []
    for codes in (Int8Codes, Int4Codes):
        select = codes.select_rows
        monkeypatch.setattr(
            codes, "select_rows", lambda self, rows, select=select: cuts.append(rows) or select(self, rows)
        )
    fused = FusedBlock(block.requires_grad_(False))
    cache, x, rope = fused.new_cache(), torch.randn(3, 64), shape.rope(torch.arange(3))
    for _ in range(3):
        fused.run(x, rope, cache)
        fused.append_kv(x, rope, cache)
    assert cuts == [slice(0, 128), slice(64, 128)]
