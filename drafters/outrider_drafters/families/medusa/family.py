"""Medusa from published files, and its declaration. layout.py knows their names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads import (
    HeadsDrafter,
    NewestHiddenTap,
    TokenPath,
    default_choices,
    newest_hidden_info,
)
from outrider_drafters.families.medusa.layout import (
    EXTRAS,
    SHARED,
    MedusaLayout,
    is_output,
    read_layout,
    read_token_map,
    recognizes,
)
from outrider_drafters.families.medusa.network import NAME, Medusa, MedusaSizes, output_of


class MedusaDrafter(HeadsDrafter):
    """Client half: all heads' logits from the newest feature. The server half is NewestHiddenTap."""

    family = NAME

    def __init__(
        self,
        medusa: Medusa,
        target: TargetWeights,
        shared: Tensor | None = None,
        tokens: Tensor | None = None,
        row_tokens: Tensor | None = None,
    ) -> None:
        """`shared` [rows, E]: one output for all heads, unless they have their own. `tokens` [k] int64: the only ones
        to draft, besides the target's draft vocabulary. `row_tokens` [rows]: what the rows of outputs that are not the
        target's stand for; None if every token has one."""
        sizes = medusa.sizes
        super().__init__(target, newest_hidden_info(sizes.hidden), sizes.heads, default_choices(sizes.heads))
        self._blocks = [head[: sizes.blocks] for head in medusa.heads]
        target = target if tokens is None else target.drafting(tokens.tolist())
        outputs = [output_of(head) for head in medusa.heads] if sizes.rows else [shared]
        self._outputs = [target.head_for(output, row_tokens) for output in outputs]

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        """Return the same logits for every path: Medusa's heads do not see drafted tokens."""
        head, is_shared = len(lines[0]) - 1, len(self._outputs) < self.num_heads
        if not is_shared:
            return self._logits(feature, range(head, head + 1)).expand(len(lines), -1)
        # An output that all heads share is read once for all of them: memory traffic is the cost.
        if () not in held:
            held[()] = self._logits(feature, range(self.num_heads))
        return held[()][head : head + 1].expand(len(lines), -1)

    def _logits(self, feature: Tensor, heads: range) -> Tensor:
        """Compute the logits [heads, V] of one head with its own output, or of all that share one."""
        mixed = torch.cat([self._blocks[head](feature) for head in heads])
        return self._outputs[heads.start].logits(mixed)


def _load(files: DrafterFiles, target: TargetSizes, like: Tensor) -> tuple[Medusa, MedusaLayout]:
    files.need_vocabulary(target)
    layout = read_layout(files)
    layout.files.need(frozenset({layout.first}))
    hidden = layout.files.checkpoint.matrix(layout.first)[1]
    files.need_equal("hidden size", hidden, target.hidden)
    rows = _rows(layout, target)
    sizes = MedusaSizes(hidden, rows, layout.num_heads, layout.num_blocks, layout.bias, tied=False)
    return layout.files.build(lambda: Medusa(sizes), like, also_known=EXTRAS), layout


def _rows(layout: MedusaLayout, target: TargetSizes) -> int:
    """Return the rows of each head's own output. Raises UsageError if they do not fit the target's vocabulary."""
    if layout.output == "target":
        return 0
    name = _output_name(layout)
    layout.files.need(frozenset({name}))
    rows, width = layout.files.checkpoint.matrix(name)
    layout.files.need_equal(f"width of {name}", width, target.hidden)
    _row_tokens(layout, target)
    return rows if layout.output == "own" else 0


def _row_tokens(layout: MedusaLayout, target: TargetSizes) -> Tensor | None:
    """Return the tokens that the rows of the outputs stand for; None if every token has one. Raises UsageError."""
    name, tokens = _output_name(layout), read_token_map(layout, target)
    if tokens is not None and layout.files.checkpoint.shape(name)[0] == len(tokens):
        return tokens
    return layout.files.row_tokens(name, target.vocab)


def _output_name(layout: MedusaLayout) -> str:
    return SHARED if layout.output == "shared" else f"0.{layout.num_blocks}.weight"


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> MedusaDrafter:
    medusa, layout = _load(files, target.sizes, target.embed)
    shared = layout.files.checkpoint.read(SHARED).to(target.embed) if layout.output == "shared" else None
    rows = None if layout.output == "target" else _row_tokens(layout, target.sizes)
    return MedusaDrafter(medusa, target, shared, read_token_map(layout, target.sizes), rows)


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state, newest only",
    offline="as far as its heads",
    trees="fixed choices",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=lambda files, target, like: NewestHiddenTap(_load(files, target, like)[0].sizes.hidden),
    is_head=is_output,
    options=(DRAFT_VOCAB_OPTION,),
)
