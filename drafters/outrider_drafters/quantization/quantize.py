"""Quantize float tensors to int8 and int4, and store the codes in safetensors files.

`X` as int8 is stored as `X.int8` and `X.scale`, as int4 as `X.int4`, `X.scale` and `X.zero` (codes.py says what
they mean). int8 codes follow from the largest value of a row. torchao chooses int4 codes by HQQ (Badri and Shaji 2023,
mobiusml's half-quadratic quantization), which moves a group's zero until few values are far off; nothing else needs it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from outrider_drafters.quantization.codes import INT4_ROWS, INT8_WIDTH, Int4Codes, Int8Codes
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_proto.errors import UsageError

Weights = Literal["float32", "bfloat16", "int8", "int4"]
GROUP = 32  # values that share one int4 scale and zero
CHUNK = 1 << 20  # values passed to HQQ at a time
_ROUNDED = 1 << 24  # values rounded to int8 at a time
INT8, INT4, SCALE, ZERO = ".int8", ".int4", ".scale", ".zero"


def quantize(weight: Tensor, weights: Literal["int8", "int4"]) -> QuantizedWeight:
    """Quantize a matrix [n, k]; to int8 if its sizes do not fit int4. Raises UsageError for int4 without torchao."""
    divides = weight.shape[0] % INT4_ROWS == 0 and weight.shape[1] % GROUP == 0
    plain = weight.detach().float().cpu().contiguous()
    return QuantizedWeight(_int4(plain) if weights == "int4" and divides else Int8Codes.rounded(plain))


def int8_rows(weight: Tensor) -> Tensor:
    """Quantize a plain matrix [n, k] on a CPU to int8; return any that the kernel for few rows cannot take as it is."""
    plain = type(weight) in (Tensor, torch.nn.Parameter) and weight.device.type == "cpu"
    if not plain or weight.shape[1] % INT8_WIDTH:
        return weight
    return QuantizedWeight(Int8Codes.rounded(weight.detach()), weight.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


def coded_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the matrices that are codes in an int8 model. Raises UsageError if it has others."""
    kinds = (nn.Linear, nn.Embedding)
    coded = frozenset(f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.ndim > 1 and name not in coded:
            raise UsageError(f"dtype=int8: {name} of a {type(model).__name__} is no linear layer's; take bfloat16")
    return coded


def tied_names(model: Any) -> set[str]:
    """Return the names of weights that are others' and stored by those alone."""
    return set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()


def int8_tensors(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Return what is stored of a matrix [n, k] that becomes int8 codes."""
    # A part at a time: rounding takes several times its memory.
    first, *others = map(Int8Codes.rounded, torch.split(weight, max(1, _ROUNDED // weight.shape[1])))
    joined = first.concat(others)
    assert joined is not None
    return code_tensors(name, QuantizedWeight(joined))


def code_tensors(name: str, weight: QuantizedWeight) -> dict[str, Tensor]:
    """Return a weight's parts by their names in a file."""
    match weight.coded:
        case Int8Codes(codes, scales):
            return {name + INT8: codes, name + SCALE: scales}
        case Int4Codes(pairs, scales, zeros):
            return {name + INT4: pairs, name + SCALE: scales, name + ZERO: zeros}


def rebuild_weights(path: Path, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rebuild the weights of a file from its tensors. Raises UsageError for codes without matching scales."""
    tensors: dict[str, Tensor] = {}
    coded = {name.removesuffix(kind) for name in parts for kind in (INT8, INT4) if name.endswith(kind)}
    for name in coded:
        try:
            codes = _int8_parts(name, parts) if name + INT8 in parts else _int4_parts(name, parts)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        tensors[name] = QuantizedWeight(codes)
    of_codes = {name + part for name in coded for part in (INT8, INT4, SCALE, ZERO)}
    return {**tensors, **{name: tensor for name, tensor in parts.items() if name not in of_codes}}


def _int8_parts(name: str, parts: Mapping[str, Tensor]) -> Int8Codes:
    codes = _part(parts, name + INT8, torch.int8, 2)
    scales = _part(parts, name + SCALE, torch.bfloat16, 1)
    if len(codes) != len(scales):
        raise UsageError(f"{name}{SCALE}: {len(scales)} scales for {len(codes)} rows")
    return Int8Codes(codes, scales)


def _int4_parts(name: str, parts: Mapping[str, Tensor]) -> Int4Codes:
    pairs = _part(parts, name + INT4, torch.uint8, 2)
    scales, zeros = (_part(parts, name + part, torch.bfloat16, 2) for part in (SCALE, ZERO))
    wanted = (len(pairs), 2 * pairs.shape[1] // GROUP)
    if (tuple(scales.shape), tuple(zeros.shape)) != (wanted, wanted):
        raise UsageError(f"{name}{SCALE}: need scales and zeros of shape {list(wanted)}")
    return Int4Codes(pairs, scales, zeros)


def _part(parts: Mapping[str, Tensor], name: str, dtype: torch.dtype, dims: int) -> Tensor:
    part = parts.get(name)
    if part is None or part.dtype != dtype or part.ndim != dims:
        raise UsageError(f"{name}: missing or of another type: need {dims} dimensions of {dtype}")
    if part.is_floating_point() and not part.isfinite().all():
        raise UsageError(f"{name}: holds values that are no numbers: the file is damaged")
    return part


def _int4(weight: Tensor) -> Int4Codes:
    """Quantize with HQQ, a few rows at a time."""
    # HQQ makes several copies of its input; rows are independent, so the codes are those of the whole matrix.
    first, *others = (_int4_rows(rows) for rows in torch.split(weight, max(1, CHUNK // weight.shape[1])))
    joined = first.concat(others)
    assert joined is not None
    return joined


def _int4_rows(weight: Tensor) -> Int4Codes:
    try:
        from torchao.quantization import quant_primitives  # type: ignore[import-untyped]  # ships no types
    except ImportError as error:
        raise UsageError("int4 weights are made with torchao: pip install 'outrider[edge]'") from error
    codes, scales, zeros, _ = quant_primitives._choose_qparams_and_quantize_affine_hqq(
        weight, nbits=4, group_size=GROUP, compute_dtype=torch.bfloat16, device="cpu"
    )
    groups = (len(weight), weight.shape[1] // GROUP)
    # Even columns in the low half of each byte: Int4Codes unpacks in this order.
    return Int4Codes(codes[:, ::2] | (codes[:, 1::2] << 4), scales.view(groups), zeros.view(groups))
