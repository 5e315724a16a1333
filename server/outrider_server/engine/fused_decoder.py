"""The forward pass of a Llama and its kin, in fewer and larger steps than transformers takes.

One product for q, k and v and one for gate and up, norms and rotations in few calls: on a device less than half the
kernels that its host must launch. On a CPU, with weights packed for oneDNN, half the time of a pass of 1, 17 or 80
rows. transformers' own forward is the plain path; the results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from outrider_drafters.blocks.packed_linear import PackedLinear, can_pack
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.processor import padded_rows
from outrider_drafters.quantization.codes import code_product, packed_product
from outrider_drafters.readers.checkpoint import release
from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.batch_segment import AttentionCall
from outrider_server.engine.hf_model import BatchInvariance, holds_int8, int8_codes

_MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_MOST_BYTES = 4 * 2**30  # of weights on a CPU: the packed ones are a second copy


class FusedLayer:
    """One decoder layer over rows [n, hidden]."""

    def __init__(self, layer: Any, index: int, *, packed: bool) -> None:  # Any: transformers' layer
        attention, mlp = layer.self_attn, layer.mlp
        # Mistral has one for all layers, Qwen one for some.
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._index = index
        exact = holds_int8(layer)
        self._silu: Callable[[Tensor], Tensor] = _exact_silu if exact else F.silu
        self._rotate = _exactly_rotated if exact else _rotated
        self.qkv = _merged([attention.q_proj, attention.k_proj, attention.v_proj], packed=packed)
        self.out = _merged([attention.o_proj], packed=packed)
        self.gate_up = _merged([mlp.gate_proj, mlp.up_proj], packed=packed)
        self.down = _merged([mlp.down_proj], packed=packed)
        self._head_dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._head_dim
        self._kv_heads = attention.k_proj.out_features // self._head_dim
        self.call = AttentionCall(attention.scaling, None, window)
        self._head_norms = (
            [_norm(norm, exact=exact) for norm in (attention.q_norm, attention.k_norm)]
            if hasattr(attention, "q_norm")
            else []
        )
        self._attention_norm = _norm(layer.input_layernorm, exact=exact)
        self._mlp_norm = _norm(layer.post_attention_layernorm, exact=exact)

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, slots: SlotAttention) -> Tensor:
        """Run rows x [padded, hidden], of which those behind cos and sin [n, 1, head_dim] are padding.

        `sin` has the sign of rotate_half in it.
        """
        split = self._heads + self._kv_heads
        num_rows = len(cos)
        heads = self.qkv(self._attention_norm(x))[:num_rows].view(num_rows, split + self._kv_heads, self._head_dim)
        rotated = self._rotate(self._normed(heads[:, :split]), cos, sin).transpose(0, 1)
        value = heads[:, split:].transpose(0, 1)
        mixed = slots.attend(
            self._index, rotated[None, : self._heads], rotated[None, self._heads :], value[None], self.call
        )
        mixed = mixed.reshape(num_rows, -1)
        if (padding := len(x) - num_rows) > 0:
            mixed = F.pad(mixed, (0, 0, 0, padding))
        x = _plus(self.out, mixed, x)
        gate, up = self.gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return _plus(self.down, self._silu(gate).mul_(up), x)

    def _normed(self, heads: Tensor) -> Tensor:
        """Norm the heads [n, heads, dim] of queries and keys, each kind by its own weights, where the model does."""
        if not self._head_norms:
            return heads
        parts = heads[:, : self._heads], heads[:, self._heads :]
        return torch.cat([norm(part) for norm, part in zip(self._head_norms, parts, strict=True)], dim=1)


class FusedDecoder:
    """The whole model, over a flat batch. `packed`: with weights in oneDNN's layout."""

    def __init__(self, model: Any, *, packed: bool) -> None:  # Any: one of _MODELS, which share no typed base class
        inner = model.model
        self.model = model
        self.has_own_cores = False
        self._embedding = inner.embed_tokens
        self._rotary = inner.rotary_emb
        self._pads = packed or model.device.type == "cpu"  # for oneDNN
        self._exactly = BatchInvariance if holds_int8(model) else nullcontext
        self.layers = [FusedLayer(layer, index, packed=packed) for index, layer in enumerate(inner.layers)]
        self._norm = _norm(inner.norm, exact=holds_int8(model))
        self.head = _merged([model.lm_head], packed=packed)

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        num_rows = len(tokens)
        if self._pads:  # once, here: the products would otherwise do so each on its own
            tokens = F.pad(tokens, (0, padded_rows(num_rows) - num_rows))
        x = F.embedding(tokens, self._embedding.weight)
        with self._exactly():
            cos, sin = self._rotary(x[None], position_ids=positions[None])
        half = cos.shape[-1] // 2
        sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        states: list[Tensor] = []
        for layer in self.layers:
            states.append(x)
            x = layer.run(x, cos[0, :, None], sin[:, None], slots)
        states.append(last := self._norm(x))
        hidden = {index: (x if index == BEFORE_NORM else states[index])[:num_rows] for index in wanted}
        return self.head(last[:num_rows] if keep is None else last[keep]), hidden


def fused_decoder(model: PreTrainedModel, *, packed: bool | None = None) -> FusedDecoder | None:
    """Return the fused form of a Llama or its kin; None for others.

    `packed` None: on a CPU, if it is not large; there None is returned where torch has no oneDNN for the type. The
    model's own weights become parts of the merged ones.
    """
    if type(model) not in _MODELS or model.config.hidden_act != "silu":
        return None
    # Quantized or adapted layers are of other classes; their weights alone are not what they compute.
    if not all(type(module) is nn.Linear for module in model.modules() if hasattr(module, "out_features")):
        return None
    if packed is None:
        packed = model.device.type == "cpu"
    if not packed or holds_int8(model):
        return FusedDecoder(model, packed=packed)
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= _MOST_BYTES
    return FusedDecoder(model, packed=is_small) if all(map(can_pack, model.parameters())) else None


def _norm(norm: Any, *, exact: bool) -> Callable[[Tensor], Tensor]:  # transformers' class has no types
    """Return the function of an RMSNorm; `exact`: the same bits on every processor."""
    weight: Tensor = norm.weight.detach()
    if exact:
        return partial(_exact_norm, weight=weight.double(), eps=norm.variance_epsilon)
    return partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=norm.variance_epsilon)


def _plus(layer: PackedLinear | Int8Linear, x: Tensor, residual: Tensor) -> Tensor:
    if isinstance(layer, Int8Linear) or layer.by_onednn or layer.bias is not None:
        return layer.plus(x, residual)
    return torch.addmm(residual, x, layer.weight.t())  # one kernel instead of two


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [n, heads, dim] by [n, 1, dim], in the layout of transformers' rotate_half."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return torch.addcmul(heads * cos, swapped, sin)


def _exact_norm(x: Tensor, *, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).mul_(weight).float()


def _exact_silu(x: Tensor) -> Tensor:
    return F.silu(x.double()).float()  # as in BatchInvariance


def _exactly_rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Do as _rotated(), in steps whose roundings do not depend on how many elements torch computes at a time."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return (heads * cos).add_(swapped.mul_(sin))


class Int8Linear:
    """The linear layers of one input with weights of int8 codes; `packed`: as one product."""

    def __init__(self, layers: Sequence[nn.Linear], bias: Tensor | None, *, packed: bool) -> None:
        codes = [each for layer in layers if (each := int8_codes(layer.weight)) is not None]
        # The product of codes; None: not packed.
        self.of_codes = code_product(*codes) if packed else None
        plain = partial(_side_by_side, [layer.weight for layer in layers])
        self._product = plain if self.of_codes is None else packed_product(self.of_codes)
        self.bias = bias
        for layer in layers:
            release(layer.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [n, in] to [n, out]."""
        product = self._product(x)
        return product if self.bias is None else product.add_(self.bias)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """Map [n, in] to [n, out] and add `residual`."""
        return self(x).add_(residual)


def _side_by_side(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    return torch.cat([F.linear(x, weight) for weight in weights], dim=-1)


def _merged(layers: Sequence[nn.Linear], *, packed: bool) -> PackedLinear | Int8Linear:
    """Return the layers of one input as one product."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias, parts = torch.cat(biases) if biases else None, [layer.weight for layer in layers]
    if holds_int8(layers[0]):
        return Int8Linear(layers, bias, packed=packed)
    weight = torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach()
    linear = PackedLinear(weight, bias, packed=packed, parts=parts if packed else ())
    for part, rows in zip(parts, torch.split(weight, [len(part) for part in parts]), strict=True):
        release(part)
        if not packed:  # the plain path reads the same memory: a second copy would only cost
            part.data = rows
    return linear
