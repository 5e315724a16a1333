"""The Llama block that drafters are made of: RMSNorm, rotate-half RoPE, grouped-query attention and a gated MLP.

The caller owns keys, values and masks, so that one block serves teacher-forced training, cached drafting,
cross-attention and attention over a target's layers. Submodules carry the names of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.rope import RopeScaling, inverse_frequencies
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.readers.config import Config, config_int, rms_norm_eps, rope_theta
from outrider_proto.errors import UsageError

WEIGHTS = (
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
QKV_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")  # Qwen2 targets
QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")  # Qwen3 targets: over each head, before RoPE
_PLAIN: Mapping[str, tuple[object, ...]] = {  # settings of a block, and what each has to be where it is given
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
}

HEADS = "num_attention_heads"
INIT_STD = 0.02
FEW_KEYS = 64


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Sizes of one block. Raises UsageError when heads do not divide or RoPE has no pairs to turn."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.kv_heads, self.head_dim, self.mlp) < 1:
            raise UsageError(f"{self}: every size must be at least 1")
        if self.heads % self.kv_heads:
            raise UsageError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}")
        if self.head_dim % 2:
            raise UsageError(f"head_dim={self.head_dim}: RoPE needs an even one")

    def rope(self, positions: Tensor) -> Rope:
        """Compute the rotation for integer positions [n]; negative ones are allowed."""
        angles = positions.unsqueeze(-1) * inverse_frequencies(
            self.head_dim, self.rope_theta, self.rope_scaling, positions.device
        )
        cos, sin = angles.cos(), angles.sin()
        if self.rope_scaling is not None:
            cos, sin = cos * self.rope_scaling.magnitude, sin * self.rope_scaling.magnitude
        return Rope(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def as_config(self, layers: int, max_context: int, vocab: int) -> Config:
        """Return a config.json of such blocks, but for RoPE and biases, whose keys differ between layouts."""
        return {
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": layers,
            "max_position_embeddings": max_context,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": False,
            "vocab_size": vocab,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Cosines and sines of n positions for both halves of a head; the left half's sines are negated."""

    cos: Tensor  # [n, head_dim] float32
    sin: Tensor

    def for_heads(self) -> Rope:
        """Return the rotation of positions [b, n], the same for all heads of x [b, heads, n, head_dim]."""
        return Rope(self.cos.unsqueeze(1), self.sin.unsqueeze(1))

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate x [..., n, head_dim]."""
        # Rotate-half: dimension i pairs with i + head_dim / 2, as in Hugging Face. GGUF files pair neighbors instead.
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos.to(x.dtype), swapped, self.sin.to(x.dtype))


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Only where a Linear follows, which autocast would round the output for anyway.
        if torch.is_grad_enabled() and torch.is_autocast_enabled("cpu") and x.device.type == "cpu":
            narrowed: Tensor = _NarrowNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]  # torch
            return narrowed
        # Autocast may hand over a narrow x: the cast makes the norm run in the weight's precision.
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class _NarrowNorm(torch.autograd.Function):
    """RMSNorm under autocast on a CPU, where torch has no fused one; only the sum of squares is in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # Any: torch's context
        narrow = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            x = x.to(narrow)
            squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square()
            inverse = squares.div_(x.shape[-1]).add_(eps).rsqrt_().to(narrow)
            unit, scale = x * inverse, weight.to(narrow)
            ctx.save_for_backward(unit, inverse, scale)
            normed: Tensor = unit * scale
            return normed

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor, None]:  # Any: as above
        unit, inverse, scale = ctx.saved_tensors
        along = upstream * unit
        d_weight = along.flatten(0, -2).sum(0, dtype=torch.float32)
        if not ctx.needs_input_grad[0]:
            return None, d_weight, None
        mean = torch.linalg.vecdot(along, scale).unsqueeze(-1).div_(unit.shape[-1])
        return (upstream * scale).addcmul_(unit, mean, value=-1).mul_(inverse), d_weight, None


class Attention(nn.Module):
    """Grouped-query attention over rows `inputs` wide, by default as wide as the block."""

    # head_dim is a size of its own: in some models (Qwen3) heads * head_dim differs from the width.
    def __init__(self, shape: BlockShape, inputs: int | None = None, *, out_bias: bool = False) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        inputs = shape.width if inputs is None else inputs
        self.q_proj = nn.Linear(inputs, q_width, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(inputs, kv_width, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(inputs, kv_width, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(q_width, shape.width, bias=out_bias)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.head_dim, shape.eps) if shape.qk_norm else nn.Identity()

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """Compute the rotated queries [b, heads, n, head_dim] of x [b, n, inputs]."""
        return rope.rotate(self.q_norm(self._heads(self.q_proj(x))))

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Compute the rotated keys and the values of x [b, n, inputs], each [b, kv_heads, n, head_dim]."""
        return rope.rotate(self.k_norm(self._heads(self.k_proj(x)))), self._heads(self.v_proj(x))

    def forward(self, x: Tensor, rope: Rope, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        queries = self.queries(x, rope)
        if mask is None and torch.is_grad_enabled() and keys.shape[-2] <= FEW_KEYS:
            mixed = _attend_in_full(queries, keys, values)
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # nn.Module.__call__ is Any

    def _heads(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        return x.view(batch, rows, width // self.head_dim, self.head_dim).transpose(1, 2)


def _attend_in_full(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend with all scores at once: of many short texts, as LSA's, faster on a CPU than torch's blocks of keys."""
    batch, heads, rows, width = queries.shape
    groups = batch * keys.shape[1]
    scores = queries.reshape(groups, -1, width) @ (keys.flatten(0, 1).mT * width**-0.5)
    mixed: Tensor = scores.softmax(-1).to(values.dtype) @ values.flatten(0, 1)
    return mixed.view(batch, heads, rows, width)


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]  # as above


class LlamaBlock(nn.Module):
    """Pre-norm block with queries from x, keys and values from the caller; EAGLE's first has no `input_norm`."""

    def __init__(self, shape: BlockShape, *, input_norm: bool = True, out_bias: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.input_layernorm = RMSNorm(shape.width, shape.eps) if input_norm else nn.Identity()
        self.self_attn = Attention(shape, out_bias=out_bias)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        self.mlp = GatedMLP(shape.width, shape.mlp)
        self.apply(initialize)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Compute the keys and values of x [b, n, width], each [b, kv_heads, n, head_dim]."""
        return self.self_attn.keys_values(self.input_layernorm(x), rope)

    def forward(self, x: Tensor, rope: Rope, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let x [b, n, width] attend to keys and values [b, kv_heads, m, head_dim].

        mask: bool, broadcast to [b, 1, n, m], true where a query sees a key; None if every query sees every key.
        """
        x = x + self.self_attn(self.input_layernorm(x), rope, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]  # as above

    def self_attend(self, x: Tensor, rope: Rope, mask: Tensor | None = None) -> Tensor:
        """Let x attend to its own keys and values."""
        return self(x, rope, *self.keys_values(x, rope), mask)  # type: ignore[no-any-return]  # as above


def stored_shape(checkpoint: Checkpoint, prefix: str, config: Config, heads_key: str = HEADS) -> BlockShape:
    """Read the sizes of the block whose tensors' names start with `prefix`; heads, RoPE's base and eps from the config.

    `heads_key` names the number of heads where the config has it. RoPE is unscaled: which blocks scale it depends on
    the family. Raises UsageError if rows do not divide into heads, and for settings that make another block of it.
    """
    heads = config_int(config, heads_key if heads_key in config else HEADS)
    q_rows, width = checkpoint.matrix(f"{prefix}self_attn.q_proj.weight")
    k_rows, _ = checkpoint.matrix(f"{prefix}self_attn.k_proj.weight")
    head_dim = q_rows // heads
    if head_dim * heads != q_rows or head_dim == 0 or k_rows % head_dim:
        raise UsageError(f"{prefix}self_attn: {q_rows} rows of q_proj and {k_rows} of k_proj do not make {heads} heads")
    _refuse_other_blocks(config, head_dim)
    return BlockShape(
        width=width,
        heads=heads,
        kv_heads=k_rows // head_dim,
        head_dim=head_dim,
        mlp=checkpoint.matrix(f"{prefix}mlp.gate_proj.weight")[0],
        rope_theta=rope_theta(config),
        eps=rms_norm_eps(config),
        qkv_bias=prefix + QKV_BIASES[0] in checkpoint.names,
        qk_norm=prefix + QK_NORMS[0] in checkpoint.names,
    )


def _refuse_other_blocks(config: Config, head_dim: int) -> None:
    """Raise UsageError for a setting that changes a block's arithmetic in a way that none here has."""
    # Passed over, it would cost acceptance and nothing else: nobody would notice. sliding_window is not among them:
    # heads come with their target's config, and the code they were trained in (SafeAILab's) has no windows.
    plain = {**_PLAIN, "attention_multiplier": (head_dim**-0.5,)}
    for key, allowed in plain.items():
        if (value := config.get(key)) is not None and value not in allowed:
            raise UsageError(f"config.json: {key}={value}: need {allowed[0]}")
    for key in ("rope_scaling", "rope_parameters"):
        entry = config.get(key)
        if not isinstance(entry, dict):
            continue
        if kinds := [kind for kind, value in entry.items() if isinstance(value, dict)]:
            raise UsageError(f"config.json: {key} differs by layers ({', '.join(kinds)}): need one for all")
        if (share := entry.get("partial_rotary_factor")) not in (None, 1):
            raise UsageError(f"config.json: partial_rotary_factor={share}: need 1")


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return a [length, length] bool mask, true on and below the diagonal."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def initialize(module: nn.Module) -> None:
    """Give a linear layer or an embedding its random weights."""
    # Not on the meta device: initializing there makes torch import its compiler, which takes a second.
    if isinstance(module, (nn.Linear, nn.Embedding)) and not module.weight.is_meta:
        nn.init.normal_(module.weight, std=INIT_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
