"""Hydra and Hydra++ (arXiv 2402.05109; zankner/Hydra): heads on the target's hidden state and the tokens after it.

z_i = concat(h_q, embed(x_q+1) .. embed(x_q+1+i))     "grounded"; ungrounded: h_q alone, like Medusa
head i: z <- res_connection(z) + SiLU(linear(z));  then z <- z + SiLU(linear(z)), once per further block
logits of x_q+2+i = hydra_lm_head_i(z)                 with bias
Hydra++ ("prefix-mlp"): h <- norm(Llama block(h_0 .. h_q)), causal, RoPE by position; the rest is the same
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, RMSNorm, causal_mask
from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import LAST, Activations
from outrider_drafters.families.heads import newest_hidden_info
from outrider_drafters.readers.checkpoint import HYDRA_HEADS, write_model
from outrider_proto.frames import TapInfo

OWN_OUTPUT = "outrider_own_output"  # key of our config.json: false if there are no outputs and the target's counts


@dataclass(frozen=True, slots=True)
class HydraSizes:
    """Sizes of a set of heads; `hidden` is the target's, and `vocab` too, or 0 if all heads use the target's output.

    `prefix`: shape of Hydra++'s layer. `offset`: layers before the last where the hidden state is taken (0: after the
    final norm). `tied`: a head's blocks after its first share their weights, as in the published training.
    """

    hidden: int
    vocab: int
    heads: int = 4
    blocks: int = 1
    grounded: bool = True
    prefix: BlockShape | None = None
    offset: int = 0
    tied: bool = True

    def inputs(self, head: int) -> int:
        """Return how many rows of width `hidden` a head reads: the hidden state and the tokens after it."""
        return 2 + head if self.grounded else 1


class HydraBlock(nn.Module):
    """x + SiLU(linear(x)), with x projected to the hidden width if it is wider. SiLU's part is initialized to 0."""

    def __init__(self, hidden: int, inputs: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs * hidden, hidden)
        self.res_connection = nn.Linear(inputs * hidden, hidden) if inputs > 1 else nn.Identity()
        if not self.linear.weight.is_meta:
            for parameter in self.linear.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + F.silu(self.linear(x))  # type: ignore[no-any-return]  # nn.Module.__call__ is Any


class HydraPrefix(nn.Module):
    """Hydra++'s layer over hidden states; submodules are named as in the published files."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList([LlamaBlock(shape)])
        self.norm = RMSNorm(shape.width, shape.eps)

    @property
    def block(self) -> LlamaBlock:
        layer = self.layers[0]
        assert isinstance(layer, LlamaBlock)
        return layer

    def forward(self, hidden: Tensor) -> Tensor:
        """Run over whole sequences [B, T, E], causally."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        mask = causal_mask(len(positions), hidden.device)
        return self.norm(self.block.self_attend(hidden, self.block.shape.rope(positions), mask))  # type: ignore[no-any-return]  # as above


class Hydra(nn.Module):
    """The trained part; submodules are named as in the published files of kind "mlp"."""

    def __init__(self, sizes: HydraSizes) -> None:
        super().__init__()
        self.sizes = sizes
        if sizes.prefix is not None:
            # The published spelling, which is the tensors' prefix.
            self.prefix_embeding_layer = HydraPrefix(sizes.prefix)
        self.hydra_mlp = nn.ModuleList(_blocks(sizes, head) for head in range(sizes.heads))
        self.hydra_lm_head = nn.ModuleList(
            nn.Linear(sizes.hidden, sizes.vocab) for _ in range(sizes.heads if sizes.vocab else 0)
        )

    @property
    def prefix(self) -> HydraPrefix | None:
        return None if self.sizes.prefix is None else self.prefix_embeding_layer

    @property
    def heads(self) -> list[tuple[list[HydraBlock], nn.Linear | None]]:
        """Return the blocks and the own output of each head."""
        lists = [head for head in self.hydra_mlp if isinstance(head, nn.ModuleList)]
        blocks = [[block for block in head if isinstance(block, HydraBlock)] for head in lists]
        if not self.sizes.vocab:
            return [(head, None) for head in blocks]
        outputs = [output for output in self.hydra_lm_head if isinstance(output, nn.Linear)]
        return list(zip(blocks, outputs, strict=True))

    def head_hidden(self, number: int, x: Tensor, dropout: float = 0.0) -> Tensor:
        """Compute what a head's output reads [..., E] from x [..., inputs x E]; dropout before blocks and output."""
        blocks, _ = self.heads[number]
        for block in blocks:
            x = block(F.dropout(x, dropout))
        return F.dropout(x, dropout)

    @torch.no_grad()
    def start_from(self, lm_head: Tensor) -> None:
        """Initialize every head's output with the target's lm_head [V, E], as published."""
        for _, output in self.heads:
            if output is not None:
                output.weight.copy_(lm_head)
                output.bias.zero_()

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, base: str = "") -> None:
        """Write the published layout as safetensors, without its copy of the embedding; `base` names the target."""
        sizes = self.sizes
        config = {
            "base_model_name_or_path": base,
            "hydra_num_heads": sizes.heads,
            "hydra_num_layers": sizes.blocks,
            "hydra_head_arch": "mlp" if sizes.prefix is None else "prefix-mlp",
            "grounded_heads": sizes.grounded,
            "hidden_state_offset": sizes.offset,
            "hidden_size": target.hidden,
            "vocab_size": target.vocab,
            **({} if sizes.vocab else {OWN_OUTPUT: False}),
        }
        tensors = self.state_dict()
        if sizes.prefix is not None:
            tensors = {published_name(name): tensor for name, tensor in tensors.items()}
        write_model(directory, config, tensors, dtype, HYDRA_HEADS)


def published_name(name: str) -> str:
    """Return a tensor's name in Hydra++'s files, where a dropout module precedes each block and output."""
    kind, head, *rest = name.split(".")
    if kind == "hydra_mlp":
        return ".".join((kind, head, str(2 * int(rest[0]) + 1), *rest[1:]))
    return ".".join((kind, head, "1", *rest)) if kind == "hydra_lm_head" else name


def _blocks(sizes: HydraSizes, head: int) -> nn.ModuleList:
    first = HydraBlock(sizes.hidden, sizes.inputs(head))
    further = HydraBlock(sizes.hidden)
    if sizes.tied:
        # Ungrounded, the first block has the same shape, and the published code uses one module for all.
        blocks = [first, *[further if sizes.grounded else first] * (sizes.blocks - 1)]
    else:
        blocks = [first, *(HydraBlock(sizes.hidden) for _ in range(sizes.blocks - 1))]
    return nn.ModuleList(blocks)


def prefix_info(prefix: HydraPrefix, offset: int = 0) -> TapInfo:
    """Describe the features of a prefix layer, named after its weights as stored, its RoPE and what it reads."""
    shape = prefix.block.shape
    digest = tensors_fingerprint(prefix.state_dict())
    name = f"hydra-prefix:{digest}:{shape.rope_theta:g}" + (f":{offset}" if offset else "")
    return TapInfo(name, "hydra-prefix", shape.width, newest_only=True)


def tap_info(hydra: Hydra) -> TapInfo:
    sizes, prefix = hydra.sizes, hydra.prefix
    return newest_hidden_info(sizes.hidden, sizes.offset) if prefix is None else prefix_info(prefix, sizes.offset)


class HydraPrefixTap:
    """Server half of Hydra++: its prefix layer runs over every session's hidden states. Hydra's is NewestHiddenTap."""

    needs_kv = False

    def __init__(self, prefix: HydraPrefix, like: Tensor, offset: int = 0) -> None:
        """The weights take the type and device of `like`."""
        self.info = prefix_info(prefix, offset)  # of the weights as stored: before the cast
        prefix = prefix.to(like.device, like.dtype)
        self.hidden_layers = (LAST - offset,)
        self.block = FusedBlock(prefix.block)
        self.norm = prefix.norm

    def new_state(self) -> HydraPrefixState:
        return HydraPrefixState(self)


class HydraPrefixState:
    """The prefix layer's keys and values of one session."""

    def __init__(self, tap: HydraPrefixTap) -> None:
        self._tap = tap
        self._cache = tap.block.new_cache()

    @torch.inference_mode()
    def rows(self, acts: Activations) -> Tensor:
        block, norm = self._tap.block, self._tap.norm
        hidden = acts.hidden[self._tap.hidden_layers[0]].to(norm.weight)
        first, count = self._cache.length, len(hidden)
        # Positions continue from the cache: the layer has seen every earlier position of the session.
        rope = block.shape.rope(torch.arange(first, first + count, device=hidden.device))
        seen = torch.ones(count, first + count, dtype=torch.bool, device=hidden.device).tril(first)
        mixed = block.run(hidden, rope, self._cache, None if count == 1 else seen)
        return F.rms_norm(mixed, norm.weight.shape, norm.weight, norm.eps).float()

    def truncate(self, length: int) -> None:
        self._cache.truncate(length)
