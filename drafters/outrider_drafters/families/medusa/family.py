"""Medusa (arXiv 2401.10774; FasterDecoding/Medusa): heads on the target's last hidden state, each for itself.

head i of h_q: h <- h + SiLU(linear(h)), once a block;  logits of x_q+2+i = output(h)

h_q is the hidden state after the final norm; all nodes of a level have the same successors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads.newest import NewestHiddenTap, newest_hidden_info
from outrider_drafters.families.heads.reading import Line, ReadingState, default_choices
from outrider_drafters.families.medusa.layout import (
    EXTRAS,
    SHARED,
    MedusaLayout,
    read_layout,
    read_token_map,
    recognizes,
)
from outrider_drafters.readers.checkpoint import MEDUSA_HEADS, write_model

NAME = "medusa"


@dataclass(frozen=True, slots=True)
class MedusaSizes:
    """Sizes of a set of heads; `hidden` is the target's. `rows` of each head's own output, 0 where the target's (or
    one that all heads share) does it. `tied` blocks of a head are one, as in the published training."""

    hidden: int
    rows: int
    heads: int = 4
    blocks: int = 1
    bias: bool = True
    tied: bool = True


class MedusaBlock(nn.Module):
    """x + SiLU(linear(x)); begins as the identity."""

    def __init__(self, sizes: MedusaSizes) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.hidden, sizes.hidden, bias=sizes.bias)
        if not self.linear.weight.is_meta:
            for parameter in self.linear.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.ModuleList):
    """The trained part; submodules are named as in the published v0.1 files: head, then block or, last, output."""

    def __init__(self, sizes: MedusaSizes) -> None:
        super().__init__(_head(sizes) for _ in range(sizes.heads))
        self.sizes = sizes

    @property
    def heads(self) -> list[nn.Sequential]:
        return [head for head in self if isinstance(head, nn.Sequential)]

    def forward_train(self, hidden: Tensor, lm_head: Tensor | None = None) -> list[Tensor]:
        """Logits of every head, each [B, T, V]; row t of head i predicts token t + 2 + i.

        hidden [B, T, E]: the target's last, after its final norm. lm_head [V, E] for heads without an output.
        """
        outputs = [head(hidden) for head in self.heads]
        return outputs if lm_head is None else [F.linear(output, lm_head) for output in outputs]

    @torch.no_grad()
    def start_from(self, lm_head: Tensor) -> None:
        """Begin training with every head's output the target's lm_head [V, E], as published."""
        for head in self.heads:
            _output(head).copy_(lm_head)

    def export(self, directory: Path, target: TargetSizes, dtype: torch.dtype = torch.float32, base: str = "") -> None:
        """Write v0.1's layout as safetensors; `base` names the target."""
        config = {
            "base_model_name_or_path": base,
            "medusa_num_heads": self.sizes.heads,
            "medusa_num_layers": self.sizes.blocks,
            "hidden_size": target.hidden,
            "vocab_size": target.vocab,
        }
        write_model(directory, config, self.state_dict(), dtype, MEDUSA_HEADS)


class MedusaDrafter:
    """Client half; the server half is newest.NewestHiddenTap."""

    family = NAME
    stale_tolerant = False
    tree_in_one = False
    knows_next = True

    def __init__(
        self, medusa: Medusa, frozen: TargetWeights, shared: Tensor | None = None, tokens: Tensor | None = None
    ) -> None:
        """`shared` [rows, E]: the one output of all heads, unless they have their own. `tokens` [k] int64: the only
        ones to draft; rows of an output are theirs, or the whole vocabulary's."""
        sizes = medusa.sizes
        self.frozen = frozen
        self.like = frozen.embed
        self.tap = newest_hidden_info(sizes.hidden)
        self.vocab_size = frozen.sizes.vocab
        self.num_heads = sizes.heads
        self.plan: TreePlan | None = default_choices(sizes.heads)
        self._blocks = [head[: sizes.blocks] for head in medusa.heads]
        common = frozen.lm_head if shared is None else shared
        outputs = [_output(head) for head in medusa.heads] if sizes.rows else [common]
        self._tokens = None if tokens is None else tokens.to(self.like.device)
        self._outputs = [_kept(output, self._tokens) for output in outputs]

    def new_state(self) -> ReadingState:
        return ReadingState(self)

    def read(self, feature: Tensor) -> MedusaReading:
        return MedusaReading(self, feature)

    @property
    def has_common_output(self) -> bool:
        return len(self._outputs) < self.num_heads

    def next_logits(self, feature: Tensor) -> Tensor:
        """The target's own answer [1, V]."""
        return F.linear(feature, self.frozen.lm_head).float()

    def logits(self, feature: Tensor, heads: range) -> Tensor:
        """Those of some heads [heads, V]: one that has its own output, or any of those that have one together."""
        mixed = torch.cat([self._blocks[head](feature) for head in heads])
        logits = F.linear(mixed, self._outputs[0 if self.has_common_output else heads.start]).float()
        if self._tokens is None:
            return logits
        return logits.new_full((len(heads), self.vocab_size), -torch.inf).index_copy_(1, self._tokens, logits)


class MedusaReading:
    """See heads.Reading. A common output is gone through once for all heads: fetching its rows is the cost."""

    def __init__(self, drafter: MedusaDrafter, feature: Tensor) -> None:
        self._drafter = drafter
        self._feature = feature
        self._together: Tensor | None = None  # [heads, V]

    def after(self, lines: Sequence[Line]) -> Tensor:
        """Every line has the same successors."""
        return self._of(len(lines[0]) - 1).expand(len(lines), -1)

    def _of(self, head: int) -> Tensor:
        """A head's logits [1, V]; the target's own for -1."""
        if head < 0:
            return self._drafter.next_logits(self._feature)
        if not self._drafter.has_common_output:
            return self._drafter.logits(self._feature, range(head, head + 1))
        if self._together is None:
            self._together = self._drafter.logits(self._feature, range(self._drafter.num_heads))
        return self._together[head : head + 1]


def _head(sizes: MedusaSizes) -> nn.Sequential:
    one = MedusaBlock(sizes)
    blocks = [one if sizes.tied or number == 0 else MedusaBlock(sizes) for number in range(sizes.blocks)]
    outputs = [nn.Linear(sizes.hidden, sizes.rows, bias=False)] if sizes.rows else []
    return nn.Sequential(*blocks, *outputs)


def _output(head: nn.Sequential) -> Tensor:
    """A head's own output [rows, E]."""
    linear = head[-1]
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()


def _kept(output: Tensor, tokens: Tensor | None) -> Tensor:
    """The rows of an output that are drafted."""
    return output if tokens is None or len(output) == len(tokens) else output[tokens]


def _load(files: DrafterFiles, target: TargetSizes, like: Tensor) -> tuple[Medusa, MedusaLayout]:
    files.need_vocabulary(target)
    layout = read_layout(files)
    layout.files.need(frozenset({layout.first}))
    hidden = layout.files.checkpoint.matrix(layout.first)[1]
    files.need_equal("hidden size", hidden, target.hidden)
    rows = _rows(layout, target)
    sizes = MedusaSizes(hidden, rows, layout.num_heads, layout.num_blocks, layout.bias, tied=False)
    with torch.device("meta"):
        medusa = Medusa(sizes)
    return layout.files.fill(medusa, like, also_known=EXTRAS), layout


def _rows(layout: MedusaLayout, target: TargetSizes) -> int:
    """Rows of each head's own output. Raises UsageError for an output that is not the target's vocabulary's."""
    if layout.output == "target":
        return 0
    name = SHARED if layout.output == "shared" else f"0.{layout.num_blocks}.weight"
    layout.files.need(frozenset({name}))
    rows, width = layout.files.checkpoint.matrix(name)
    tokens = read_token_map(layout, target)
    layout.files.need_equal(f"width of {name}", width, target.hidden)
    if tokens is None or rows != len(tokens):
        layout.files.need_equal(f"rows of {name}", rows, target.vocab)
    return rows if layout.output == "own" else 0


def _load_drafter(files: DrafterFiles, frozen: TargetWeights) -> MedusaDrafter:
    medusa, layout = _load(files, frozen.sizes, frozen.embed)
    shared = layout.files.checkpoint.read(SHARED).to(frozen.embed) if layout.output == "shared" else None
    return MedusaDrafter(medusa, frozen, shared, read_token_map(layout, frozen.sizes))


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> NewestHiddenTap:
    return NewestHiddenTap(_load(files, target, like)[0].sizes.hidden)


FAMILY = Family(
    name=NAME,
    eats="the target's last hidden state, newest only",
    offline="as far as its heads",
    trees="fixed choices",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
)
