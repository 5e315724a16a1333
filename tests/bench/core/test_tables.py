"""Tables are stacked where the terminal is narrower than they are, and printed in full where there is no terminal."""

import io

import pytest
from rich.console import Console

from outrider_bench.core import tables
from outrider_bench.core.tables import plus_minus, show, show_line, table

COLUMNS = ("drafter", *(f"column {number:02}" for number in range(12)))
ROWS = [[name, *(f"{number}.25 of {name}" for number in range(12))] for name in ("moa", "independent")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[80, 40])
def terminal(request, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(
        tables, "_console", lambda: Console(file=stream, width=request.param, force_terminal=True, color_system=None)
    )
    return stream, request.param


def test_a_terminal_gets_every_value_and_no_line_wider_than_itself(terminal):
    stream, width = terminal
    show(table("wide", COLUMNS, ROWS))
    text = stream.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for value in (*COLUMNS, *(value for row in ROWS for value in row)):
        assert value in text


def test_every_part_has_the_keys(terminal):
    stream, _ = terminal
    show(table("wide", COLUMNS, ROWS))
    text = stream.getvalue()
    assert text.count("drafter") == text.count("│ moa") > 1
    assert text.count("wide") == 1


def test_a_table_that_fits_stays_in_one_piece(terminal):
    stream, _ = terminal
    show(table("narrow", COLUMNS[:2], [row[:2] for row in ROWS], caption="once"))
    assert stream.getvalue().count("drafter") == stream.getvalue().count("once") == 1


def test_a_column_too_wide_for_the_terminal_is_folded():
    stream = io.StringIO()
    Console(file=stream, width=30).print(table("", ("key", "value"), [["k", "0123456789" * 5]]))
    assert "…" not in stream.getvalue()
    digits = "".join(line.split("│")[2].strip() for line in stream.getvalue().splitlines() if line.count("│") == 3)
    assert digits == "0123456789" * 5


def test_a_pipe_gets_the_whole_table_in_one_piece(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    show(table("wide", COLUMNS, ROWS))
    show_line("a line " * 40)
    lines = capsys.readouterr().err.splitlines()
    assert all(column in next(line for line in lines if "drafter" in line) for column in COLUMNS)
    assert all(value in next(line for line in lines if "independent" in line) for value in ROWS[1])
    assert lines[-1].rstrip() == ("a line " * 40).rstrip()


def test_rows_may_be_short():
    assert table("", ("a", "b", "c"), [["1"]]).rows == (("1", "", ""),)


def test_an_interval_is_shown_by_its_farther_end():
    assert plus_minus(57.94, (56.8, 58.5), 1) == "57.9 ±1.1"
    assert plus_minus(57.94, None, 1) == plus_minus(57.94, (57.94, 57.94), 1) == "57.9"
    assert plus_minus(None, None, 1) == "-"


def test_a_lopsided_interval_is_shown_by_both_ends():
    assert plus_minus(0.86, (0.66, 2.78), 2) == "0.86 +1.92 -0.20"
    assert plus_minus(10.0, (9.5, 10.6), 1) == "10.0 ±0.6"
    assert plus_minus(12.52, (12.51, 12.53), 1) == "12.5 ±0.0"
