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


def test_an_interval_is_shown_by_its_farther_end():
    assert plus_minus(57.94, (56.8, 58.5), 1) == "57.9 ±1.1"
    assert plus_minus(57.94, None, 1) == plus_minus(57.94, (57.94, 57.94), 1) == "57.9"
    assert plus_minus(None, None, 1) == "-"
