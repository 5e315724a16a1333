"""Chooses what writes on this device without the target: in an outage, in mode offline, and on private text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_models.core.embedded import Writes, measured_writer, measured_writing
from outrider_proto.errors import UsageError

NO_WRITER = (
    "no drafter on this device writes sensible text without the target: use another mode than offline, or name one that"
    " does, such as a small language model with the target's tokenizer (--offline-drafter)"
)


@dataclass(frozen=True, slots=True)
class OfflineChoice:
    """What the drafter itself may write, and another drafter for the rest."""

    writes: Writes
    other: Drafter | None = None


def choose_offline(
    config: ClientConfig, drafter: Drafter | None, load: Callable[[str | Path], Drafter]
) -> OfflineChoice:
    """Choose as the configuration says, else by what was measured. Raises UsageError."""
    named = config.offline_drafter
    if named == NO_DRAFTER:
        return OfflineChoice("no")
    if named is not None:
        own = {DrafterSource.parse(source).name for source in config.drafters if source is not None}
        is_own = DrafterSource.parse(named).name in own
        return OfflineChoice("alone") if is_own else OfflineChoice("no", _other(named, load))
    writes = _writes(config, drafter)
    writer = measured_writer(config.target)
    if drafter is None or writes == "alone" or writer is None:
        return OfflineChoice(writes)
    return OfflineChoice(writes, load(writer))


def _other(named: str, load: Callable[[str | Path], Drafter]) -> Drafter:
    other = load(named)
    if other.tap.fingerprint:
        raise UsageError(
            f"offline_drafter={named}: it reads the target's features, which go to the drafter alone: name one that"
            " reads none, or make it the drafter"
        )
    return other


def _writes(config: ClientConfig, drafter: Drafter | None) -> Writes:
    """What the best head may write: without a measurement, one that reads no features may write all."""
    heads = () if drafter is None else RoutedDrafter.of(drafter).heads
    found: set[Writes] = {"no"}
    for source, head in zip(config.drafters, heads, strict=True):
        measured = measured_writing(source, config.target) if isinstance(source, str | Path) else None
        found.add(measured or ("no" if head.tap.fingerprint else "alone"))
    return next(writes for writes in ("alone", "after the target", "no") if writes in found)
