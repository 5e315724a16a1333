"""EAGLE-1/2 and HASS (SafeAILab/EAGLE, cnets1.py; HArmonizedSS/HASS): a Llama block over fused (token, feature) pairs.

z_t = fc(concat[embed(x_{t+1}), f_t])    embedding first; f_t: the target's last hidden after its final norm
out_t = block(z_0 .. z_t)                no input norm, RoPE position t
logits of x_{t+2} = lm_head(out_t)       no final norm: out_t stands in for f_{t+1} when drafting goes on

Published heads have one block; further ones, which the code allows, have an input norm. HASS differs in training only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock
from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, LlamaBlock, causal_mask, stored_shape
from outrider_drafters.blocks.rope import RopeScaling, rope_scaling
from outrider_drafters.blocks.stack import FusedStack
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap, last_hidden_info
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.eagle2.state import PairState
from outrider_drafters.families.family import Family
from outrider_drafters.readers.checkpoint import Checkpoint, write_model
from outrider_drafters.readers.config import Config, config_int
from outrider_proto.errors import UsageError

NAME = "eagle2"
BLOCK = "layers.{}."
FIRST = BLOCK.format(0)
EMBEDDING = "embed_tokens.weight"  # a copy of the target's, which a file may have or not
PARTS = ("fc.", FIRST)
UNSAID_THETA = 10000.0
STEPS = "outrider_steps"  # key of a config.json: over how many steps of its own output it was trained; others: one
TOLERANT_STEPS = 8  # what bridges a late verdict and drafts on: docs/features.md
REQUIRED = frozenset({"fc.weight"} | {FIRST + name for name in WEIGHTS if name != "input_layernorm.weight"})


@dataclass(frozen=True, slots=True)
class Eagle2Sizes:
    """Sizes of an EAGLE-1/2 drafter; `hidden` is the target's."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    fc_bias: bool = True
    qkv_bias: bool = False
    layers: int = 1
    rope_scaling: RopeScaling | None = None

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.mlp,
            self.rope_theta,
            self.eps,
            self.qkv_bias,
            rope_scaling=self.rope_scaling,
        )


class Eagle2(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: Eagle2Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(2 * sizes.hidden, sizes.hidden, bias=sizes.fc_bias)
        self.layers = nn.ModuleList(LlamaBlock(sizes.block, input_norm=i > 0) for i in range(sizes.layers))

    @property
    def block(self) -> LlamaBlock:
        """The first one, in published heads the only one."""
        return self.blocks[0]

    @property
    def blocks(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]

    def fuse(self, embeds: Tensor, features: Tensor) -> Tensor:
        """z of embed(x_{t+1}) and f_t, both [..., E]."""
        return self.fc(torch.cat((embeds, features), dim=-1))  # type: ignore[no-any-return]  # nn.Module

    def forward_train(self, embeds_next: Tensor, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Teacher-forced pass: hidden [B, T, E] in post-norm space, ready for lm_head; row t predicts token t + 2.

        embeds_next [B, T, E] of tokens t + 1, features [B, T, E] of positions t; mask: bool, broadcast to [B, 1, T, T],
        None for causal. Padding belongs at the end.
        """
        positions = torch.arange(features.shape[1], device=features.device)
        mask = causal_mask(len(positions), features.device) if mask is None else mask
        hidden, rope = self.fuse(embeds_next, features), self.sizes.block.rope(positions)
        for block in self.blocks:
            hidden = block.self_attend(hidden, rope, mask)
        return hidden

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, steps: int = 1) -> None:
        """Write SafeAILab's layout, without its copy of the target's embedding; `steps`: see STEPS."""
        sizes = self.sizes
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "bias": sizes.fc_bias,
            "qkv_bias": sizes.qkv_bias,
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.mlp,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "num_hidden_layers": sizes.layers,
            "max_position_embeddings": target.max_context,
            "rms_norm_eps": sizes.eps,
            "rope_theta": sizes.rope_theta,
            "rope_scaling": _scaling_config(sizes.rope_scaling),
            "tie_word_embeddings": False,
            "vocab_size": target.vocab,
            STEPS: steps,
        }
        write_model(directory, config, self.state_dict(), dtype)


def sizes_of(checkpoint: Checkpoint, config: Config, theta: float | None = None) -> Eagle2Sizes:
    """Sizes from a file that holds all REQUIRED tensors; biases by presence, whatever the config says of them.

    With linear scaling the published code builds RoPE without the config's base, which is then 10000 (cnets1.py,
    `_init_rope`). `theta` overrides either. Raises UsageError for other scalings: that code refuses them, or lets them
    depend on the length so far (`dynamic`).
    """
    scaling = _scaling(config)
    block = stored_shape(checkpoint, FIRST, config)
    return Eagle2Sizes(
        hidden=checkpoint.matrix("fc.weight")[0],
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_dim=block.head_dim,
        mlp=block.mlp,
        rope_theta=theta or (block.rope_theta if scaling is None else _scaled_theta(config)),
        eps=block.eps,
        fc_bias="fc.bias" in checkpoint.names,
        qkv_bias=block.qkv_bias,
        layers=_num_layers(checkpoint),
        rope_scaling=scaling,
    )


def _scaling(config: Config) -> RopeScaling | None:
    kind = _rope_entry(config).get("rope_type") or _rope_entry(config).get("type") or "default"
    if kind not in ("default", "linear"):
        raise UsageError(f"config.json: rope_scaling of type {kind}: EAGLE-1/2 heads are known with linear alone")
    return rope_scaling(config)


def _scaled_theta(config: Config) -> float:
    return float(_rope_entry(config).get("rope_theta") or UNSAID_THETA)


def _rope_entry(config: Config) -> Config:
    entry = config.get("rope_scaling") or config.get("rope_parameters")
    return entry if isinstance(entry, dict) else {}


def _scaling_config(scaling: RopeScaling | None) -> Config | None:
    """Of a config.json, in SafeAILab's spelling and transformers'."""
    return None if scaling is None else {"type": scaling.kind, **scaling.as_config()}


def _num_layers(checkpoint: Checkpoint) -> int:
    """Whatever the config says: there are heads whose config is the target's."""
    return next(i for i in count() if f"{BLOCK.format(i)}{WEIGHTS[1]}" not in checkpoint.names)


class Eagle2Drafter:
    """Client half; the server half is tap.LastHiddenTap."""

    family = NAME
    tree_in_one = False

    def __init__(self, eagle: Eagle2, frozen: TargetWeights, embed: Tensor | None = None, steps: int = 1) -> None:
        self.stale_tolerant = steps >= TOLERANT_STEPS
        self.fc = eagle.fc
        blocks = [FusedBlock(block) for block in eagle.blocks]
        self.block: FusedBlock | FusedStack = blocks[0] if len(blocks) == 1 else FusedStack(blocks)
        self.frozen = frozen
        self.embed = frozen.embed if embed is None else embed
        self.tap = last_hidden_info(eagle.sizes.hidden)
        self.vocab_size = frozen.sizes.vocab
        self.plan: TreePlan | None = None

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        return F.linear(torch.cat((embeds, features), dim=-1), self.fc.weight, self.fc.bias)

    def logits(self, outputs: Tensor) -> Tensor:
        return F.linear(outputs, self.frozen.lm_head).float()

    def new_state(self) -> PairState:
        return PairState(self)


def _load(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Eagle2:
    files.need_vocabulary(target)
    if EMBEDDING in files.names and files.options.embedding != "target":
        rows, width = files.checkpoint.matrix(EMBEDDING)
        files.need_equal(f"rows of {EMBEDDING}", rows, target.vocab)
        files.need_equal(f"width of {EMBEDDING}", width, target.hidden)
    files.need(REQUIRED)
    sizes = sizes_of(files.checkpoint, files.config, files.options.rope_theta)
    files.need_equal("hidden size", sizes.hidden, target.hidden)
    with torch.device("meta"):
        network = Eagle2(sizes)
    return files.fill(network, like, also_known=frozenset({EMBEDDING}))


def _load_drafter(files: DrafterFiles, frozen: TargetWeights) -> Eagle2Drafter:
    eagle, steps = _load(files, frozen.sizes, frozen.embed), config_int(files.config, STEPS, 1)
    return Eagle2Drafter(eagle, frozen, _own_embedding(files, frozen), steps)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> LastHiddenTap:
    return LastHiddenTap(_load(files, target, like).sizes.hidden)


def _own_embedding(files: DrafterFiles, frozen: TargetWeights) -> Tensor | None:
    """The drafter's embedding, unless it has none or it is the copy of the target's that it should be. Which of two is
    right the published code does not ask: it takes the file's."""
    if files.options.embedding == "target":
        return None
    if EMBEDDING not in files.names:
        if files.options.embedding == "own":
            raise files.fault(f"embedding=own: it has no tensor {EMBEDDING}")
        return None
    own = files.checkpoint.read(EMBEDDING).to(frozen.embed)
    return None if torch.equal(own, frozen.embed) else own


FAMILY = Family(
    name=NAME,
    eats="the target's last hidden state",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: any(name.startswith(PARTS) for name in files.names),
    drafter=_load_drafter,
    tap=_load_tap,
    options=("rope_theta", "embedding"),
)
