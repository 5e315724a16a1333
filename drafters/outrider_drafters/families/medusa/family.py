"""Medusa from published files, and its declaration. layout.py knows their names."""

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads import NewestHiddenTap
from outrider_drafters.families.medusa.drafter import MedusaDrafter
from outrider_drafters.families.medusa.layout import (
    EXTRAS,
    SHARED,
    MedusaLayout,
    is_output,
    read_layout,
    read_token_map,
    recognizes,
)
from outrider_drafters.families.medusa.network import NAME, Medusa, MedusaSizes


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


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> NewestHiddenTap:
    return NewestHiddenTap(_load(files, target, like)[0].sizes.hidden)


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state, newest only",
    offline="as far as its heads",
    trees="fixed choices",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
    is_head=is_output,
    options=(DRAFT_VOCAB_OPTION,),
)
