"""An exhibit: a table or a figure of a paper, what it is measured with, and how it is shown beside the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider_bench.core.tables import ResultTable
from outrider_lab.paper.claims import Claim
from outrider_lab.paper.measurement import Measurement, Reports
from outrider_lab.paper.setup import PaperSetup


@dataclass(frozen=True, slots=True)
class Plot:
    """Draws a PNG file from the reports."""

    caption: str
    draw: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Shown:
    """What an exhibit shows: our tables, the paper's own, claims, plots, and notes, a line each."""

    tables: Sequence[ResultTable]
    papers: Sequence[ResultTable] = ()
    claims: Sequence[Claim] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Exhibit:
    """`needs` are the measurements, which exhibits may share; `differs` says what is not as in the paper."""

    name: str
    paper: str
    title: str
    differs: str
    needs: Callable[[PaperSetup], Sequence[Measurement]]
    show: Callable[[PaperSetup, Reports], Shown]
