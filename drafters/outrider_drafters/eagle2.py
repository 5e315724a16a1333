"""EAGLE-1/2 (SafeAILab/EAGLE, cnets1.py): one Llama block over fused (token, feature) pairs.

z_t = fc(concat[embed(x_{t+1}), f_t])    embedding first; f_t: the target's last hidden after its final norm
out_t = block(z_0 .. z_t)                no input norm, RoPE position t
logits of x_{t+2} = lm_head(out_t)       no final norm: out_t stands in for f_{t+1} when drafting goes on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.checkpoint import Checkpoint, write_model
from outrider_drafters.config import Config
from outrider_drafters.drafter import ENDLESS
from outrider_drafters.family import Family
from outrider_drafters.files import DrafterFiles
from outrider_drafters.frozen import FrozenTarget, TargetSizes
from outrider_drafters.fused import FusedBlock
from outrider_drafters.layers import WEIGHTS, BlockShape, LlamaBlock, Rope, causal_mask, stored_shape
from outrider_drafters.record import Record
from outrider_drafters.rows import Rows
from outrider_drafters.scratch import Scratch
from outrider_drafters.shape import TreePlan
from outrider_drafters.tap import LastHiddenTap, last_hidden_info

NAME = "eagle2"
BLOCK = "layers.0."
EMBEDDING = "embed_tokens.weight"  # a copy of the target's, which a file may have or not
PARTS = ("fc.", BLOCK)
REQUIRED = frozenset({"fc.weight"} | {BLOCK + name for name in WEIGHTS if name != "input_layernorm.weight"})


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

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            self.hidden, self.heads, self.kv_heads, self.head_dim, self.mlp, self.rope_theta, self.eps, self.qkv_bias
        )


class Eagle2(nn.Module):
    """The trained part; submodules are named as in the published files."""

    def __init__(self, sizes: Eagle2Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(2 * sizes.hidden, sizes.hidden, bias=sizes.fc_bias)
        self.layers = nn.ModuleList([LlamaBlock(sizes.block, input_norm=False)])

    @property
    def block(self) -> LlamaBlock:
        layer = self.layers[0]
        assert isinstance(layer, LlamaBlock)
        return layer

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
        return self.block.self_attend(self.fuse(embeds_next, features), self.block.shape.rope(positions), mask)

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32) -> None:
        """Write SafeAILab's layout, without its copy of the target's embedding."""
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
            "num_hidden_layers": 1,
            "max_position_embeddings": target.max_context,
            "rms_norm_eps": sizes.eps,
            "rope_theta": sizes.rope_theta,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype)


def sizes_of(checkpoint: Checkpoint, config: Config) -> Eagle2Sizes:
    """Sizes from a file that holds all REQUIRED tensors; biases by presence, whatever the config says of them."""
    block = stored_shape(checkpoint, BLOCK, config)
    return Eagle2Sizes(
        hidden=checkpoint.matrix("fc.weight")[0],
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_dim=block.head_dim,
        mlp=block.mlp,
        rope_theta=block.rope_theta,
        eps=block.eps,
        fc_bias="fc.bias" in checkpoint.names,
        qkv_bias=block.qkv_bias,
    )


class Eagle2Drafter:
    """Client half; the server half is tap.LastHiddenTap."""

    family = NAME

    def __init__(self, eagle: Eagle2, frozen: FrozenTarget, embed: Tensor | None = None) -> None:
        self.fc = eagle.fc
        self.block = FusedBlock(eagle.block)
        self.frozen = frozen
        self.embed = frozen.embed if embed is None else embed
        self.tap = last_hidden_info(eagle.sizes.hidden)
        self.vocab_size = frozen.sizes.vocab
        self.plan: TreePlan | None = None

    def new_state(self) -> Eagle2State:
        return Eagle2State(self)


class Eagle2State:
    """The block's cache over (token, feature) pairs. See drafter.DraftState.

    Row t pairs token t + 1 with feature t. Rows beyond the features are temporary: their feature is the row before's
    own output, and they are made anew once true features come. Without any feature at all, a row -1 pairs token 0 with
    zeros and starts that recursion.
    """

    def __init__(self, drafter: Eagle2Drafter) -> None:
        self._drafter = drafter
        self._device, dtype = drafter.embed.device, drafter.embed.dtype
        self._record = Record(drafter.tap.width)
        self._features = Rows(width=drafter.tap.width, dtype=dtype, device=self._device)
        self._cache = drafter.block.new_cache()
        self._outputs = Rows(width=drafter.tap.width, dtype=dtype, device=self._device)  # root, then scratch
        self._scratch = Scratch(self._device)
        self._num_true = 0  # rows of the cache that are made of true features
        self._num_standing = 0  # those and the temporary ones; scratch rows follow
        self._next_token = 0  # the first that no row pairs yet
        self._output: Tensor | None = None  # [1, E] of the last standing row; None when that row has to be made anew

    @property
    def num_tokens(self) -> int:
        return len(self._record.tokens)

    @property
    def num_features(self) -> int:
        return self._record.num_features

    @property
    def reach(self) -> int:
        return ENDLESS

    def append(self, tokens: Sequence[int]) -> None:
        self._record.append(tokens)

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._record.take(first, rows).to(self._drafter.embed))

    def rollback(self, num_tokens: int) -> None:
        self._record.rollback(num_tokens)
        self._features.truncate(self._record.num_features)
        self._num_true = min(self._num_true, self._record.usable)
        self._output = None

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._record.need_root()
        output = self._output
        if output is None or self._num_true != self._record.usable:
            output = self._settle()
        self._cache.truncate(self._num_standing)
        while self._next_token < self.num_tokens:
            output = self._standing_rows(self._next_token, output)
        self._output = output
        self._scratch.clear()
        self._outputs.truncate(0)
        self._outputs.append(output)
        return self._logits(output)[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        depths, mask = self._scratch.add(parents, self._num_standing)
        pairs = self._pairs(tokens, self._outputs.all[[1 + parent for parent in parents]])
        rope = self._drafter.block.shape.rope(depths + (self.num_tokens - 2))
        outputs = self._drafter.block.run(pairs, rope, self._cache, mask)
        self._outputs.append(outputs)
        return self._logits(outputs)

    def _settle(self) -> Tensor:
        """Make the rows that have true features and lack them in the cache; the output [1, E] of the last one."""
        usable = self._record.usable
        first = max(0, min(self._num_true, usable - 1))  # the last one at least: its output is needed
        self._num_true = usable
        self._num_standing, self._next_token = first, first + 1 if usable else 0
        self._cache.truncate(first)
        if usable == 0:
            return self._features.all.new_zeros(1, self._drafter.tap.width)
        return self._standing_rows(first + 1, self._features.all[first:usable])

    def _standing_rows(self, first_token: int, features: Tensor) -> Tensor:
        """Pair as many tokens as there are features [n, E]; the output [1, E] of the last one."""
        self._next_token = first_token + len(features)
        pairs = self._pairs(self._record.tokens[first_token : self._next_token], features)
        block, last = self._drafter.block, self._next_token - 2
        block.remember(pairs[:-1], self._rope(first_token - 1, last), self._cache)
        output = block.run(pairs[-1:], self._rope(last, last + 1), self._cache)
        self._num_standing = self._cache.length
        return output

    def _pairs(self, tokens: Sequence[int], features: Tensor) -> Tensor:
        fc, embed = self._drafter.fc, self._drafter.embed
        embeds = F.embedding(torch.tensor(tokens, dtype=torch.int64, device=self._device), embed)
        return F.linear(torch.cat((embeds, features), dim=-1), fc.weight, fc.bias)

    def _rope(self, first: int, end: int) -> Rope:
        return self._drafter.block.shape.rope(torch.arange(first, end, device=self._device))

    def _logits(self, outputs: Tensor) -> Tensor:
        return F.linear(outputs, self._drafter.frozen.lm_head).float()


def _load(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Eagle2:
    files.need_vocabulary(target)
    if EMBEDDING in files.names:
        rows, width = files.checkpoint.matrix(EMBEDDING)
        files.need_equal(f"rows of {EMBEDDING}", rows, target.vocab)
        files.need_equal(f"width of {EMBEDDING}", width, target.hidden)
    files.need(REQUIRED)
    sizes = sizes_of(files.checkpoint, files.config)
    files.need_equal("hidden size", sizes.hidden, target.hidden)
    with torch.device("meta"):
        network = Eagle2(sizes)
    return files.fill(network, like, also_known=frozenset({EMBEDDING}))


def _load_drafter(files: DrafterFiles, frozen: FrozenTarget) -> Eagle2Drafter:
    return Eagle2Drafter(_load(files, frozen.sizes, frozen.embed), frozen, _own_embedding(files, frozen))


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> LastHiddenTap:
    return LastHiddenTap(_load(files, target, like).sizes.hidden)


def _own_embedding(files: DrafterFiles, frozen: FrozenTarget) -> Tensor | None:
    """The drafter's embedding, unless it has none or it is the copy of the target's that it should be."""
    if EMBEDDING not in files.names:
        return None
    own = files.checkpoint.read(EMBEDDING).to(frozen.embed)
    return None if torch.equal(own, frozen.embed) else own


FAMILY = Family(
    name=NAME,
    eats="the target's last hidden state",
    offline="goes on",
    trees="dynamic",
    recognises=lambda files: any(name.startswith(PARTS) for name in files.names),
    drafter=_load_drafter,
    tap=_load_tap,
)
