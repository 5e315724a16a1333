"""The forward pass of a Llama and its kin, in fewer and larger steps than transformers takes.

One product for q, k and v and one for gate and up, norms and rotations in few calls: on a device less than half the
kernels that its host must launch. On a CPU, with weights packed for oneDNN, half the time of a pass of 1, 17 or 80
rows. transformers' own forward is the plain path; the results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from outrider_drafters.blocks.packed_linear import PackedLinear, can_pack, padded_rows
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_server.engine.attention import SlotAttention
from outrider_server.engine.batch_segment import AttentionCall

_MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_MOST_BYTES = 4 * 2**30  # of weights on a CPU: the packed ones are a second copy


class _FusedLayer:
    """One decoder layer over rows [n, hidden]."""

    def __init__(self, layer: Any, index: int, *, packed: bool) -> None:  # Any: transformers' layer
        attention, mlp = layer.self_attn, layer.mlp
        # Mistral has one for all layers, Qwen one for some.
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._index = index
        self._qkv = _merged([attention.q_proj, attention.k_proj, attention.v_proj], packed=packed)
        self._out = _merged([attention.o_proj], packed=packed)
        self._gate_up = _merged([mlp.gate_proj, mlp.up_proj], packed=packed)
        self._down = _merged([mlp.down_proj], packed=packed)
        self._head_dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._head_dim
        self._kv_heads = attention.k_proj.out_features // self._head_dim
        self._call = AttentionCall(attention.scaling, None, window)
        self._head_norms = [_norm(attention.q_norm), _norm(attention.k_norm)] if hasattr(attention, "q_norm") else []
        self._attention_norm = _norm(layer.input_layernorm)
        self._mlp_norm = _norm(layer.post_attention_layernorm)

    def run(self, x: Tensor, cos: Tensor, sin: Tensor, slots: SlotAttention) -> Tensor:
        """Run rows x [padded, hidden], of which those behind cos and sin [n, 1, head_dim] are padding.

        `sin` has the sign of rotate_half in it.
        """
        split = self._heads + self._kv_heads
        num_rows = len(cos)
        heads = self._qkv(self._attention_norm(x))[:num_rows].view(num_rows, split + self._kv_heads, self._head_dim)
        rotated = _rotated(self._normed(heads[:, :split]), cos, sin).transpose(0, 1)
        value = heads[:, split:].transpose(0, 1)
        mixed = slots.attend(
            self._index, rotated[None, : self._heads], rotated[None, self._heads :], value[None], self._call
        )
        mixed = mixed.reshape(num_rows, -1)
        if (padding := len(x) - num_rows) > 0:
            mixed = F.pad(mixed, (0, 0, 0, padding))
        x = _plus(self._out, mixed, x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return _plus(self._down, F.silu(gate).mul_(up), x)

    def _normed(self, heads: Tensor) -> Tensor:
        """Norm the heads [n, heads, dim] of queries and keys, each kind by its own weights, where the model does."""
        if not self._head_norms:
            return heads
        parts = heads[:, : self._heads], heads[:, self._heads :]
        return torch.cat([norm(part) for norm, part in zip(self._head_norms, parts, strict=True)], dim=1)


class FusedDecoder:
    """The whole model, over a flat batch. `packed`: with weights in oneDNN's layout, for which rows are padded."""

    def __init__(self, model: Any, *, packed: bool) -> None:  # Any: one of _MODELS, which share no typed base class
        inner = model.model
        self._embeddings = inner.embed_tokens.weight
        self._rotary = inner.rotary_emb
        self._packed = packed
        self.layers = [_FusedLayer(layer, index, packed=packed) for index, layer in enumerate(inner.layers)]
        self._norm = _norm(inner.norm)
        self._head = _merged([model.lm_head], packed=packed)

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: SlotAttention, keep: Tensor | None, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows of tokens [n] at positions [n].

        Return logits of rows `keep` (None: all), and the hidden states `wanted` by transformers' index or BEFORE_NORM.
        """
        num_rows = len(tokens)
        if self._packed:  # once, here: the products would otherwise do so each on its own
            tokens = F.pad(tokens, (0, padded_rows(num_rows) - num_rows))
        x = F.embedding(tokens, self._embeddings)
        cos, sin = self._rotary(x[None], position_ids=positions[None])
        half = cos.shape[-1] // 2
        sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        states: list[Tensor] = []
        for layer in self.layers:
            states.append(x)
            x = layer.run(x, cos[0, :, None], sin[:, None], slots)
        states.append(last := self._norm(x))
        hidden = {index: (x if index == BEFORE_NORM else states[index])[:num_rows] for index in wanted}
        return self._head(last[:num_rows] if keep is None else last[keep]), hidden


def fused_decoder(model: PreTrainedModel, *, packed: bool | None = None) -> FusedDecoder | None:
    """Return the fused form of a Llama or its kin; None for others.

    `packed` None: on a CPU, and there None is returned for large models and where torch has no oneDNN for the type. The
    model's own weights become parts of the merged ones.
    """
    if type(model) not in _MODELS or model.config.hidden_act != "silu":
        return None
    # Quantized or adapted layers are of other classes; their weights alone are not what they compute.
    if not all(type(module) is nn.Linear for module in model.modules() if hasattr(module, "out_features")):
        return None
    if packed is None:
        packed = model.device.type == "cpu"
    if not packed:
        return FusedDecoder(model, packed=False)
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= _MOST_BYTES
    return FusedDecoder(model, packed=True) if is_small and all(map(can_pack, model.parameters())) else None


def _norm(norm: Any) -> Callable[[Tensor], Tensor]:  # transformers' class has no types
    """Return the function of an RMSNorm."""
    weight: Tensor = norm.weight.detach()
    return partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=norm.variance_epsilon)


def _plus(layer: PackedLinear, x: Tensor, residual: Tensor) -> Tensor:
    if layer.is_packed or layer.bias is not None:
        return layer.plus(x, residual)
    return torch.addmm(residual, x, layer.weight.t())  # one kernel instead of two


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [n, heads, dim] by [n, 1, dim], in the layout of transformers' rotate_half."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return torch.addcmul(heads * cos, swapped, sin)


def _merged(layers: Sequence[nn.Linear], *, packed: bool) -> PackedLinear:
    """Return the layers of one input as one product."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    weight = torch.cat([layer.weight.detach() for layer in layers]) if len(layers) > 1 else layers[0].weight.detach()
    # The plain path reads the same memory: a third copy would only cost.
    sizes = [layer.out_features for layer in layers]
    for layer, rows in zip(layers, torch.split(weight, sizes), strict=True):
        layer.weight.data = rows
    return PackedLinear(weight, torch.cat(biases) if biases else None, packed=packed)
