"""The speed of named hardware: how long its forward passes last. Has no clock.

A paced run stretches its own passes to these times: link, codec and acceptance are real, only arithmetic is emulated.

source = "measured on ..."      where the times come from
verify_ms = 33.0                one pass of the target
draft_level_ms = 7.0            one pass of the drafter on the edge device
server_level_ms = 7.0           the same on the server
row_us = 0.0                    more a row beyond the first 64 of a pass of the target (long prompts); may be left out
feature_width = 0               values a token whose weight features are padded to; may be left out
[batch_factors]                 outcomes drafted side by side -> times a level; left out: each costs a level of its own
8 = 1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.options.values import build, read_toml

SUFFIX = ".toml"
FREE_ROWS = 64  # rows in a pass of the target that cost no more than one row
MAX_FEATURE_WIDTH = 2**16
_MS = ("verify_ms", "draft_level_ms", "server_level_ms", "row_us")


@dataclass(frozen=True, slots=True)
class Pace:
    """Named hardware; the fields are the keys above. Raises UsageError for values out of range."""

    name: str
    source: str
    verify_ms: float
    draft_level_ms: float
    server_level_ms: float
    row_us: float = 0.0
    feature_width: int = 0
    batch_factors: Mapping[int, float] = field(default_factory=lambda: {1: 1.0}, hash=False)

    def __post_init__(self) -> None:
        for key in _MS:
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{key}={value}: need 0 or more")
        if not 0 <= self.feature_width <= MAX_FEATURE_WIDTH:
            raise UsageError(f"feature_width={self.feature_width}: need 0 (no padding) to {MAX_FEATURE_WIDTH}")
        _check_factors(self.batch_factors)

    @classmethod
    def load(cls, name_or_path: str | Path) -> Pace:
        """Load shipped hardware by name, or a TOML file. Raises UsageError that names file, key and remedy."""
        path = Path(name_or_path)
        if path.suffix == SUFFIX:
            return _read(path.expanduser())
        if str(name_or_path) not in shipped_paces():
            raise UsageError(f"pace {name_or_path}: need a {SUFFIX} file or one of {', '.join(shipped_paces())}")
        return _read(_shipped() / f"{name_or_path}{SUFFIX}")

    def pass_s(self, num_rows: int) -> float:
        """Return the seconds of a pass of the target over `num_rows` rows."""
        return self.verify_ms / 1e3 + max(0, num_rows - FREE_ROWS) * self.row_us / 1e6

    def level_factor(self, outcomes: int) -> float:
        """Return the levels that `outcomes` side by side cost: as the next larger known batch, beyond in proportion."""
        larger = [size for size in self.batch_factors if size >= outcomes]
        if larger:
            return self.batch_factors[min(larger)]
        largest = max(self.batch_factors)
        return self.batch_factors[largest] * outcomes / largest


def shipped_paces() -> tuple[str, ...]:
    """Return the names of the shipped hardware."""
    return tuple(sorted(file.name[: -len(SUFFIX)] for file in _shipped().iterdir() if file.name.endswith(SUFFIX)))


def _shipped() -> Any:  # Any: a Traversable, whose module moves between Python versions
    return resources.files("outrider_drafters.emulation") / "hardware"


def _read(file: Any) -> Pace:  # Any: a Path or a Traversable
    values = read_toml(file)
    try:
        if "name" in values:
            raise UsageError("name: no such key; the file's name is its name")
        return build(Pace, {"name": file.name[: -len(SUFFIX)], **values})
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _check_factors(factors: Mapping[int, float]) -> None:
    if not factors:
        raise UsageError("batch_factors: empty: give at least one, such as 1 = 1.0, or leave the table out")
    least = 0.0
    for size, factor in sorted(factors.items()):
        if size < 1:
            raise UsageError(f"batch_factors.{size}: need at least 1 outcome")
        if not (math.isfinite(factor) and factor > 0 and factor >= least):
            raise UsageError(f"batch_factors.{size}={factor}: need more than 0, and no less than of fewer outcomes")
        least = factor
