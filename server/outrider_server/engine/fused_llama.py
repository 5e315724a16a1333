"""The forward pass of a small Llama on a CPU, in fewer and larger steps than transformers takes.

One product for q, k and v and one for gate and up, norms and rotations in few calls, weights packed for oneDNN: half
the time of a pass of 80 rows. transformers' own forward is the plain path; the results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.batch_segment import AttentionCall
from outrider_server.engine.hf_model import is_small

_PACKED_ROWS = 12  # from here on packed weights are faster (measured on CPU)


class PackedLinear:
    """Several linear layers of one input as one product.

    Holds two more copies of the weights, one of them packed for oneDNN, whose kernels use all that any maker's
    processor offers; MKL's, behind torch's float32 products, do not on AMD (measured: twice the time at 80 rows).
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < _PACKED_ROWS:
            return F.linear(x, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        if len(x) < _PACKED_ROWS:
            return residual + F.linear(x, self._weight, self._bias)
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")
        return total


class _FusedLayer:
    """One decoder layer over rows [n, hidden]."""

    def __init__(self, layer: Any, index: int) -> None:  # transformers' layer
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._qkv = PackedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        self._out = PackedLinear([attention.o_proj])
        self._gate_up = PackedLinear([mlp.gate_proj, mlp.up_proj])
        self._down = PackedLinear([mlp.down_proj])
        self._head_dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._head_dim
        self._kv_heads = attention.k_proj.out_features // self._head_dim
        self._call = AttentionCall(attention.scaling, None, None)
        self._attention_norm = _Norm(layer.input_layernorm)
        self._mlp_norm = _Norm(layer.post_attention_layernorm)

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, slots: SlotAttention) -> Tensor:
        """`sin` has the sign of rotate_half in it."""
        split = self._heads + self._kv_heads
        heads = self._qkv(self._attention_norm(x)).view(len(x), split + self._kv_heads, self._head_dim)
        rotated = _rotated(heads[:, :split], cos, sin).transpose(0, 1)
        value = heads[:, split:].transpose(0, 1)
        mixed = slots.attend(
            self._index, rotated[None, : self._heads], rotated[None, self._heads :], value[None], self._call
        )
        x = self._out.plus(mixed.reshape(len(x), -1), x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return self._down.plus(F.silu(gate).mul_(up), x)


class FusedLlama:
    """The whole model, over a flat batch."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        inner = model.model
        self._embeddings = inner.embed_tokens.weight
        self._rotary = inner.rotary_emb
        self._layers = [_FusedLayer(layer, index) for index, layer in enumerate(inner.layers)]
        self._norm = _Norm(inner.norm)
        self._head = PackedLinear([model.lm_head])

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows of tokens [n] at positions [n].

        Return logits of rows `keep` (None: all), and the hidden states `wanted` by transformers' index or BEFORE_NORM.
        """
        x = F.embedding(tokens, self._embeddings)
        cos, sin = self._rotary(x[None], position_ids=positions[None])
        half = cos.shape[-1] // 2
        sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        states: list[Tensor] = []
        for layer in self._layers:
            states.append(x)
            x = layer.run(x, cos[0, :, None], sin[:, None], slots)
        last = self._norm(x)
        states.append(last)
        hidden = {index: x if index == BEFORE_NORM else states[index] for index in wanted}
        return self._head(last if keep is None else last[keep]), hidden


class _Norm:
    """A LlamaRMSNorm."""

    def __init__(self, norm: Any) -> None:  # transformers' class has no types
        self._weight: Tensor = norm.weight.detach()
        self._eps: float = norm.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


def fused_llama(model: PreTrainedModel) -> FusedLlama | None:
    """Return the fused form of a small Llama in float32 on a CPU whose torch has oneDNN; None for other models."""
    if type(model) is not LlamaForCausalLM or not is_small(model) or not _has_onednn():
        return None
    places = {(parameter.dtype, parameter.device.type) for parameter in model.parameters()}
    # Quantized or adapted layers are of other classes; their weights alone are not what they compute.
    are_plain = all(type(module) is nn.Linear for module in model.modules() if hasattr(module, "out_features"))
    is_fit = places == {(torch.float32, "cpu")} and are_plain and model.config.hidden_act == "silu"
    return FusedLlama(model) if is_fit else None


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [n, heads, dim] by [n, 1, dim], in the layout of transformers' rotate_half."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return torch.addcmul(heads * cos, swapped, sin)


def _has_onednn() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch
    return is_built and hasattr(torch.ops.mkldnn, "_linear_pointwise")
