"""What was measured, engine by engine and profile by profile, as plain data and JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.transfers.estimates import TransferEstimate, TransferRatio
from outrider_netsim.transfers.plan import OVERHEAD, TransferPlan

Json = dict[str, Any]  # what json.loads gives

# The most realistic first: real netem here, or in the virtual machine of the tests.
REFERENCES = ("kernel", "kernel (VM)", "tun", "tun (VM)")


@dataclass(frozen=True, slots=True)
class TransferRow:
    """All samples of one engine and profile, by figure and repetition."""

    link: Json  # the profile, as JSON
    engine: str
    samples: Mapping[str, Sequence[Sequence[float]]]
    estimates: Mapping[str, TransferEstimate] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: TransferEstimate.of(repetitions) for name, repetitions in self.samples.items()}
        object.__setattr__(self, "estimates", {name: estimate for name, estimate in found.items() if estimate})

    @property
    def profile(self) -> str:
        return str(self.link["name"])

    @property
    def rate_mbps(self) -> float:
        """The profile's rate, down; 0 is unlimited."""
        return float(self.link["down"]["rate_bps"]) / 1e6

    def followed_by(self, later: TransferRow) -> TransferRow:
        """Return a row with the repetitions of both."""
        names = dict.fromkeys([*self.samples, *later.samples])
        samples = {name: [*self.samples.get(name, ()), *later.samples.get(name, ())] for name in names}
        return TransferRow(self.link, self.engine, samples)

    def differing_link_key(self, other: TransferRow) -> str | None:
        """Return what differs between the links of two rows, such as "up.loss"; None if nothing does."""
        for way in ("up", "down"):
            ours, theirs = self.link[way], other.link[way]
            # Keys of one only: a version that had no such setting.
            for key in ours.keys() & theirs.keys():
                if ours[key] != theirs[key]:
                    return f"{way}.{key}"
        return None

    def as_json(self) -> Json:
        """Return the figures and the samples behind them."""
        return {
            "link": self.link,
            "engine": self.engine,
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
        """Return a figure over the reference's; None where either is missing, and for what is of the engine alone."""
        reference = self.reference(row, engine)
        if figure == OVERHEAD or reference is None or figure not in row.estimates or figure not in reference.estimates:
            return None
        return TransferRatio.of(row.estimates[figure], reference.estimates[figure])

    def with_rows_of(self, other: TransferReport, name: str) -> TransferReport:
        """Add the rows of another report; those of the same profile and engine become one, with all repetitions.

        Raises ProfileError when it was made by another plan, or over another link of the same name.
        """
        ours, theirs = asdict(self.plan), asdict(other.plan)
        if differing := [key for key in ours if ours[key] != theirs[key]]:
            key = differing[0]
            raise ProfileError(f"{name}: measured with {key}={theirs[key]}, not {ours[key]}: measure it again")
        rows = {(row.profile, row.engine): row for row in self.rows}
        for row in other.rows:
            self._check_link(row, name)
            place = row.profile, row.engine
            rows[place] = rows[place].followed_by(row) if place in rows else row
        return TransferReport(self.plan, _sorted(rows.values()), self.made_by + other.made_by)

    def _check_link(self, row: TransferRow, name: str) -> None:
        for ours in self.rows:
            if ours.profile == row.profile and (key := ours.differing_link_key(row)):
                raise ProfileError(f"{name}: {row.profile} was another link ({key} differs): measure it again")

    def as_json(self) -> Json:
        """Return everything; `report_from_json` reads it."""
        return {
            "plan": asdict(self.plan),
            "rows": [row.as_json() for row in self.rows],
            "made_by": list(self.made_by),
        }


def load_report(path: Path) -> TransferReport:
    """Read a report's JSON file. Raises ProfileError."""
    try:
        return report_from_json(json.loads(path.read_text()))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path}: not a report of `outrider-netsim transfers`: {error!r}") from None


def report_from_json(described: Json) -> TransferReport:
    """Read what `as_json` wrote. Raises ValueError, KeyError, TypeError or AttributeError for anything else."""
    rows = [TransferRow(row["link"], row["engine"], row["samples"]) for row in described["rows"]]
    return TransferReport(TransferPlan.of(described["plan"]), tuple(rows), tuple(described["made_by"]))


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
