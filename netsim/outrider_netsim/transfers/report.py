"""What was measured, engine by engine and profile by profile, as plain data and JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.transfers.estimates import TransferEstimate, TransferRatio
from outrider_netsim.transfers.plan import TransferPlan

Json = dict[str, Any]  # what json.loads gives

# The most realistic first: real netem here, or in the virtual machine of the tests.
REFERENCES = ("kernel", "kernel (VM)", "tun", "tun (VM)")


@dataclass(frozen=True, slots=True)
class TransferRow:
    """All samples of one engine and profile, by figure and repetition."""

    profile: str
    engine: str
    rate_mbps: float  # of the profile, down; 0: unlimited
    samples: Mapping[str, Sequence[Sequence[float]]]
    estimates: Mapping[str, TransferEstimate] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: TransferEstimate.of(repetitions) for name, repetitions in self.samples.items()}
        object.__setattr__(self, "estimates", {name: estimate for name, estimate in found.items() if estimate})

    def as_json(self) -> Json:
        """Return the figures and the samples behind them."""
        return {
            "profile": self.profile,
            "engine": self.engine,
            "rate_mbps": self.rate_mbps,
            "figures": {name: _estimate_as_json(estimate) for name, estimate in self.estimates.items()},
            "samples": {
                name: [[round(sample, 3) for sample in samples] for samples in repetitions]
                for name, repetitions in self.samples.items()
            },
        }


@dataclass(frozen=True, slots=True)
class TransferReport:
    """Rows measured by one plan, and how."""

    plan: TransferPlan
    rows: tuple[TransferRow, ...]
    made_by: tuple[Json, ...]

    def reference(self, row: TransferRow, engine: str | None = None) -> TransferRow | None:
        """Return the row that `row` is compared with: `engine`'s, else the most realistic one. None if it is that."""
        same = {other.engine: other for other in self.rows if other.profile == row.profile}
        wanted = [engine] if engine else REFERENCES
        found = next((same[name] for name in wanted if name in same), None)
        return None if found is row else found

    def ratio(self, row: TransferRow, figure: str, engine: str | None = None) -> TransferRatio | None:
        """Return a figure over the reference's; None where either is missing."""
        reference = self.reference(row, engine)
        if reference is None or figure not in row.estimates or figure not in reference.estimates:
            return None
        return TransferRatio.of(row.estimates[figure], reference.estimates[figure])

    def with_rows_of(self, other: TransferReport, file: str) -> TransferReport:
        """Add the rows of a report made by the same plan. Raises ProfileError when it was made by another."""
        ours, theirs = asdict(self.plan), asdict(other.plan)
        if differing := [name for name in ours if ours[name] != theirs[name]]:
            name = differing[0]
            raise ProfileError(f"{file}: measured with {name}={theirs[name]}, not {ours[name]}: measure it again")
        ours_too = {(row.profile, row.engine) for row in self.rows}
        more = tuple(row for row in other.rows if (row.profile, row.engine) not in ours_too)
        return TransferReport(self.plan, _sorted(self.rows + more), self.made_by + other.made_by)

    def as_json(self) -> Json:
        """Return everything; `transfers_report` reads it."""
        return {
            "plan": asdict(self.plan),
            "rows": [row.as_json() for row in self.rows],
            "made_by": list(self.made_by),
        }


def load_report(path: Path) -> TransferReport:
    """Read a report's JSON file. Raises ProfileError."""
    try:
        described = json.loads(path.read_text())
        rows = [TransferRow(*(row[name] for name in _ROW_KEYS)) for row in described["rows"]]
        return TransferReport(TransferPlan.of(described["plan"]), tuple(rows), tuple(described["made_by"]))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path}: not a report of `outrider-netsim transfers`: {error!r}") from None


_ROW_KEYS = ("profile", "engine", "rate_mbps", "samples")


def _sorted(rows: Iterable[TransferRow]) -> tuple[TransferRow, ...]:
    """Order by profile as given, and within one the references first."""
    given = list(rows)
    profiles = list(dict.fromkeys(row.profile for row in given))

    def place(row: TransferRow) -> tuple[int, int]:
        rank = REFERENCES.index(row.engine) if row.engine in REFERENCES else len(REFERENCES)
        return profiles.index(row.profile), rank

    return tuple(sorted(given, key=place))


def _estimate_as_json(estimate: TransferEstimate) -> Json:
    return {
        "median": estimate.median,
        "interval_95": [estimate.interval.low, estimate.interval.high],
        "mean": estimate.mean,
        "p95": estimate.p95,
        "samples": estimate.count,
    }
