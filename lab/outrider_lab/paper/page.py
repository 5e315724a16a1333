"""The report as one HTML file with its plots inside, and a CSV file per table; made of the measurements' JSON alone."""

from __future__ import annotations

import base64
import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from outrider_bench.core.tables import ResultTable
from outrider_lab.paper.claims import Claim, claims_table
from outrider_lab.paper.exhibit import Exhibit, Plot, Shown
from outrider_lab.paper.measurement import Measurement, Reports
from outrider_lab.paper.setup import PaperSetup
from outrider_proto.errors import UsageError
from outrider_proto.files import write_atomically

REPORT, TABLES = "report.html", "csv"


@dataclass(frozen=True, slots=True)
class Section:
    """One exhibit with what it shows."""

    exhibit: Exhibit
    shown: Shown
    measurements: Sequence[Measurement]
    plots: Sequence[tuple[str, str]]  # caption, PNG in base64

    @property
    def tables(self) -> dict[str, ResultTable]:
        """All tables by the name of their CSV file, the paper's own last."""
        own = {f"{self.exhibit.name}-{number}": one for number, one in enumerate(self.shown.tables, 1)}
        return own | {f"{self.exhibit.name}-paper-{number}": one for number, one in enumerate(self.shown.papers, 1)}


def write_page(setup: PaperSetup, exhibits: Sequence[Exhibit], reports: Reports, out: Path) -> list[tuple[str, Claim]]:
    """Write report and tables, and return all claims with where they stand. Raises UsageError where it cannot."""
    sections = [_section(setup, exhibit, reports) for exhibit in exhibits]
    claims = [(section.exhibit.name, claim) for section in sections for claim in section.shown.claims]
    tables = {"orderings": claims_table(claims)} | {
        name: one for section in sections for name, one in section.tables.items()
    }
    environment = Environment(
        loader=PackageLoader("outrider_lab.paper", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template("report.html.jinja").render(
        target=setup.target or "the embedded target",
        sections=sections,
        orderings=tables["orderings"] if claims else None,
        outcomes=outcomes(claims),
        machines=_machines(reports),
    )
    try:
        (out / TABLES).mkdir(parents=True, exist_ok=True)
        for name, one in tables.items():
            write_atomically(out / TABLES / f"{name}.csv", _csv(one))
        write_atomically(out / REPORT, html)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or out}: {error.strerror}") from error
    return claims


def outcomes(claims: Sequence[tuple[str, Claim]]) -> dict[str, int]:
    """Count the claims by outcome."""
    found: dict[str, int] = {}
    for _, claim in claims:
        found[claim.outcome] = found.get(claim.outcome, 0) + 1
    return found


def _section(setup: PaperSetup, exhibit: Exhibit, reports: Reports) -> Section:
    measurements = exhibit.needs(setup)
    shown = exhibit.show(setup, {one.name: reports[one.name] for one in measurements})
    return Section(exhibit, shown, measurements, [(plot.caption, _drawn(plot)) for plot in shown.plots])


def _drawn(plot: Plot) -> str:
    with tempfile.TemporaryDirectory(prefix="outrider-paper-") as directory:
        path = Path(directory) / "plot.png"
        plot.draw(path)
        return base64.b64encode(path.read_bytes()).decode()


def _csv(one: ResultTable) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([one.columns, *one.rows])
    return text.getvalue()


def _machines(reports: Reports) -> list[str]:
    """Return a line for each machine and set of versions that measured something."""
    return list(dict.fromkeys(_machine(report["made_by"]) for report in reports.values()))


def _machine(made_by: Mapping[str, object]) -> str:
    versions = made_by["versions"]
    assert isinstance(versions, dict)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{made_by['processor']}, {made_by['cores']} cores; {named}"
