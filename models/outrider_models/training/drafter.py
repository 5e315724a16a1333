"""Drafters: MoA and EAGLE-2, taught by a frozen target on fixed text, reply positions only.

Both learn the target's next-token distribution and its last hidden state (MoA: arXiv 2410.03804, 3.3; EAGLE:
arXiv 2401.15077, 3.3), from the same batches in the same order. They differ in what they see:

    MoA      tokens .. i; the target's K/V rows j <= start(i) only, as between two answers of the server (`sync_points`)
    EAGLE-2  tokens .. i + 1; the target's true hidden states .. i
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from outrider_drafters.eagle2 import Eagle2, Eagle2Sizes
from outrider_drafters.frozen import TargetSizes, target_sizes
from outrider_drafters.moa import MoA, MoASizes, pack_kv
from outrider_models.recipe import Blocks, EagleRecipe, Losses, MoaRecipe
from outrider_models.training.data import GROUPS, Batch, collate
from outrider_models.training.probe import probe_samples
from outrider_models.training.run import by_group


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """What the target says of a batch, and what the drafter made of it, at the positions that count."""

    drafted: Tensor  # [n, E] the drafter's hidden states
    wanted: Tensor  # [n, E] the target's, after its final norm
    groups: Tensor  # [n] int64


class DrafterTask(ABC):
    """A fresh drafter beside its frozen target."""

    def __init__(self, losses: Losses, seed: int, target_dir: Path) -> None:
        self.sizes: TargetSizes = target_sizes(target_dir)
        self.tokenizer = Tokenizer.from_file(str(target_dir / "tokenizer.json"))
        self._losses = losses
        target = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.float32)
        self._target: LlamaForCausalLM = target.requires_grad_(False)
        self._lm_head = self._target.lm_head.weight
        self._unit = self._target.model.norm.weight.pow(2).mean().sqrt()  # about the rms of the hidden states
        torch.manual_seed(seed)

    @abstractmethod
    def lesson(self, batch: Batch) -> Lesson:
        """Run target and drafter over a batch."""

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The weighted sum of both terms; by group, the divergence.

        Features are measured in units of their own size, so that a weight means the same for every target.
        """
        lesson = self.lesson(batch)
        divergence = soft_cross_entropy(F.linear(lesson.drafted, self._lm_head), F.linear(lesson.wanted, self._lm_head))
        feature = F.smooth_l1_loss(lesson.drafted / self._unit, lesson.wanted / self._unit, reduction="none").mean(-1)
        total = (self._losses.divergence * divergence + self._losses.feature * feature).sum()
        return total / batch.total_weight, by_group(divergence, lesson.groups, torch.ones_like(divergence))

    @torch.no_grad()
    def probe(self, samples: int) -> Mapping[str, str]:
        """How often the drafter's likeliest token is the target's, on held-out text under training's masks."""
        batch = collate(self.tokenizer, probe_samples(samples), prompt_weight=0.0)
        lesson = self.lesson(batch)
        drafted, wanted = (F.linear(x, self._lm_head).argmax(-1) for x in (lesson.drafted, lesson.wanted))
        agreement = by_group((drafted == wanted).float(), lesson.groups, torch.ones_like(drafted))
        return {name: f"{share:.3f}" for name, share in zip(GROUPS, agreement.tolist(), strict=True)}

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._target.model.embed_tokens.weight)

    def hidden(self, tokens: Tensor) -> Tensor:  # [rows, length, E]
        """The target's last hidden states."""
        with torch.no_grad():
            output = self._target.model(input_ids=tokens, use_cache=False)
            return cast(Tensor, output.last_hidden_state)

    def hidden_and_kv(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # [rows, length, E], [rows, length, L, 2 E_kv]
        """The same, and the packed K/V of all layers."""
        with torch.no_grad():
            output = self._target.model(input_ids=tokens, use_cache=True)
            layers = output.past_key_values.layers
            keys, values = (
                torch.stack([getattr(layer, kind) for layer in layers], dim=1) for kind in ("keys", "values")
            )
            return output.last_hidden_state, pack_kv(keys, values)


class MoaTask(DrafterTask):
    def __init__(self, recipe: MoaRecipe, target_dir: Path) -> None:
        super().__init__(recipe.losses, recipe.stream.seed, target_dir)
        self._blocks = recipe.blocks
        shape, target = recipe.shape, self.sizes
        self.network = MoA(
            MoASizes(
                hidden=target.hidden,
                heads=target.heads,
                head_dim=target.head_dim,
                packed_kv=target.packed_kv,
                lsa_kv_heads=shape.layer_kv_heads,
                lsa_mlp=shape.layer_intermediate,
                sa_kv_heads=shape.self_kv_heads,
                sa_mlp=shape.self_intermediate,
                ca_kv_heads=shape.cross_kv_heads,
                ca_mlp=shape.cross_intermediate,
                rope_theta=target.rope_theta,
                eps=target.eps,
            )
        )

    def export(self, directory: Path) -> None:
        """The published training layout, in bfloat16."""
        self.network.export(directory, self.sizes, torch.bfloat16)

    def lesson(self, batch: Batch) -> Lesson:
        hidden, packed_kv = self.hidden_and_kv(batch.inputs)
        starts = sync_points(batch.weights == 1, self._blocks)
        drafted = self.network.forward_train(self.embed(batch.inputs), packed_kv, starts)
        return _lesson(drafted, hidden, batch.weights == 1, batch.groups)


class EagleTask(DrafterTask):
    def __init__(self, recipe: EagleRecipe, target_dir: Path) -> None:
        super().__init__(recipe.losses, recipe.stream.seed, target_dir)
        target = self.sizes
        self.network = Eagle2(
            Eagle2Sizes(
                hidden=target.hidden,
                heads=target.heads,
                kv_heads=recipe.shape.kv_heads,
                head_dim=target.head_dim,
                mlp=recipe.shape.intermediate,
                rope_theta=target.rope_theta,
                eps=target.eps,
            )
        )

    def export(self, directory: Path) -> None:
        """SafeAILab's layout, in bfloat16, without a copy of the target's embedding."""
        self.network.export(directory, self.sizes, torch.bfloat16)

    def lesson(self, batch: Batch) -> Lesson:
        hidden = self.hidden(batch.inputs)
        drafted = self.network.forward_train(self.embed(batch.inputs[:, 1:]), hidden[:, :-1])
        return _lesson(drafted, hidden[:, 1:], batch.weights[:, 1:] == 1, batch.groups)


def sync_points(predicts_reply: Tensor, blocks: Blocks) -> Tensor:
    """start(i) [rows, length] int64: the last position whose K/V query i may see. Draws from torch's generator.

    predicts_reply [rows, length] bool: position i's successor belongs to a reply. Prompt positions always sync; in
    replies every n-th position does, n drawn for each row (T-step bounded mask, paper 3.3). In a blind_share of the
    rows no reply position after a drawn place does: what it is like when the link dies there.
    """
    rows, length = predicts_reply.shape
    positions = torch.arange(length)
    is_reply = F.pad(predicts_reply, (1, 0))[:, :-1]
    every = torch.randint(blocks.shortest, blocks.longest + 1, (rows, 1))
    dies_at = torch.rand(rows, 1).where(
        torch.rand(rows, 1) < blocks.blind_share, torch.tensor(2.0)
    )  # share of the reply
    spoken = is_reply.cumsum(1) / is_reply.sum(1, keepdim=True).clamp(min=1)
    syncs = ~is_reply | ((positions % every == 0) & (spoken <= dies_at))
    return torch.where(syncs, positions, 0).cummax(1).values


def soft_cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy [n] of softmax(wanted) against softmax(logits), both [n, V]: forward KL up to a constant."""
    return -(wanted.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def _lesson(drafted: Tensor, hidden: Tensor, counts: Tensor, groups: Tensor) -> Lesson:
    return Lesson(drafted[counts], hidden[counts], groups[:, None].expand_as(counts)[counts])
