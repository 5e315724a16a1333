"""Loading what a server offers beside the target: the features that drafters read, and drafters to run itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights, resolve_dir, target_sizes
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.load import load_drafter, load_tap
from outrider_server.engine.target import Target


def load_taps(target: Target, target_dir: str | Path, drafters: Sequence[str | Path | DrafterSource]) -> list[Tap]:
    """Return one tap for each kind of features.

    Raises UsageError for a drafter that cannot be read or belongs to another target.
    """
    last_hidden = LastHiddenTap(target.hidden_size)
    taps: dict[str, Tap] = {last_hidden.info.fingerprint: last_hidden}
    for drafter in drafters:
        tap = load_tap(drafter, target_dir, target.kv.dtype, target.kv.device)
        if tap is not None:
            taps.setdefault(tap.info.fingerprint, tap)
    return list(taps.values())


def load_drafters(target: Target, target_dir: str | Path, sources: Sequence[str | Path]) -> list[Drafter]:
    """Load drafters that use the target's own embedding and lm_head. Raises UsageError."""
    weights = _target_weights(target, resolve_dir(target_dir))
    return [load_drafter(source, weights) for source in sources]


def _target_weights(target: Target, directory: Path) -> TargetWeights:
    """Return the weights that drafters borrow from the loaded target.

    Where this process has only a part of them, they are read from the target's files.
    """
    # A divided model has only a part of embedding and head in this process.
    if target.ranks is not None:
        borrowed = TargetWeights.load(directory, target.kv.dtype)
        embed_rows = borrowed.embed.to(target.kv.device)
        head_rows = embed_rows if borrowed.lm_head is borrowed.embed else borrowed.lm_head.to(target.kv.device)
        return replace(borrowed, embed=embed_rows, lm_head=head_rows)
    embed: nn.Parameter = target.model.get_input_embeddings().weight  # type: ignore[assignment] # nn.Module's
    lm_head: nn.Parameter = target.model.get_output_embeddings().weight  # type: ignore[no-untyped-call] # transformers
    rows = embed.detach()
    head = rows if lm_head is embed else lm_head.detach()
    return TargetWeights(rows, head, target_sizes(directory), target.eos_token_ids, directory)
