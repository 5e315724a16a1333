"""The features a server offers: those of the target's last hidden state always, and what its drafters want."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.load import load_tap
from outrider_server.engine.target import Target


def load_taps(target: Target, target_dir: str | Path, drafters: Sequence[str | Path | DrafterSource]) -> list[Tap]:
    """One tap for each kind of features. Raises UsageError for a drafter that cannot be read or is another target's."""
    last_hidden = LastHiddenTap(target.hidden_size)
    taps: dict[str, Tap] = {last_hidden.info.fingerprint: last_hidden}
    for drafter in drafters:
        tap = load_tap(drafter, target_dir, target.kv.dtype, target.kv.device)
        if tap is not None:
            taps.setdefault(tap.info.fingerprint, tap)
    return list(taps.values())
