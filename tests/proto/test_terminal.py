"""Text of strangers on a terminal: what steers it, reorders its lines or hides is not shown, and all writing is."""

from __future__ import annotations

import io
import logging

import pytest
from rich.markdown import Markdown
from rich.progress import Progress, TextColumn
from rich.table import Table

from outrider_proto.terminal.console import TerminalConsole
from outrider_proto.terminal.text import PrintableRecord, one_line, print_line, printable

CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u2028", "\u2029"]
EMBEDDINGS = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x2070))]
MARKS = ["\u061c", "\u200e", "\u200f"]
UNSEEN = ["\u200b", "\u2060", "\ufeff", "\u180e", *map(chr, range(0xE0000, 0xE0080))]
# What stands between other letters, and what a text and a line show of it.
SHOWN = {
    **dict.fromkeys((*CONTROLS, *EMBEDDINGS), ("\ufffd", "\ufffd")),
    **dict.fromkeys(UNSEEN, ("", "")),
    **{mark: (mark, "\ufffd") for mark in MARKS},
    "\n": ("\n", " "),
    "\t": ("\t", " "),
    "\x1b]8;;http://a\x07b": ("\ufffd]8;;http://a\ufffdb", "\ufffd]8;;http://a\ufffdb"),
}
LEGIT = [
    "\u0627\u0644\u0633\u0644\u0627\u0645 123",  # Arabic
    "\u05e9\u05dc\u05d5\u05dd (123)",  # Hebrew
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f44d\U0001f3fd \U0001f1e8\U0001f1ed",
    "Zoe\u0308 \u0e01\u0e33 \u0915\u094d\u200d\u0937 \u65e5\u672c\u8a9e \u00ad\u00a0\u2026",
]


@pytest.mark.parametrize(("text", "shown"), SHOWN.items(), ids=[ascii(text) for text in SHOWN])
def test_what_steers_a_terminal_is_not_shown(text, shown):
    assert (printable(f"a{text}b"), one_line(f"a{text}b")) == tuple(f"a{each}b" for each in shown)


@pytest.mark.parametrize("text", LEGIT)
def test_all_writing_is_shown_as_it_is(text):
    assert printable(text) == one_line(text) == text


HOSTILE = "".join(text for text in SHOWN if text not in "\n\t")


def drawn(show) -> str:
    console = TerminalConsole(file=io.StringIO(), force_terminal=True, color_system=None, width=400)
    show(console)
    return console.file.getvalue()


def print_table(console):
    table = Table(f"{HOSTILE}[/x]", title=HOSTILE, caption=HOSTILE)
    table.add_row(f"{HOSTILE}[red]")
    console.print(table)


def print_bar(console):
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)


SHOWS = {
    "lines": lambda console: console.print(f"{HOSTILE}[/x]", HOSTILE),
    "rules": lambda console: console.rule(HOSTILE.replace("\r", "")),
    "a table": print_table,
    "a bar": print_bar,
    "Markdown": lambda console: console.print(Markdown(f"# {HOSTILE}\n`{HOSTILE}` [{HOSTILE}](http://a)")),
    "entities": lambda console: console.print(Markdown("".join(f"&#{ord(text[0])};" for text in SHOWN))),
}  # fmt: skip


@pytest.mark.parametrize("show", SHOWS.values(), ids=SHOWS)
def test_a_console_shows_nothing_that_steers_a_terminal(show):
    plain = drawn(show)
    for ours in ("\x1b[?25l", "\x1b[?25h", "\x1b[1A", "\x1b[2K", "\r"):  # of a bar that is drawn over
        plain = plain.replace(ours, "")
    assert not {each for each in plain if each in SHOWN} - {"\n", *MARKS}
    assert "\ufffd" in plain


def test_lines_and_logs_are_one_line(capsys):
    print_line(f"a\n{HOSTILE}", err=True)
    record = PrintableRecord("x", logging.WARNING, "", 1, "b\n%s %d", (HOSTILE, 3), None)
    heard = capsys.readouterr().err + logging.Formatter("%(levelname)s %(message)s").format(record)
    assert not {each for each in heard if each in SHOWN} - {"\n"}
    assert heard.count("\n") == 1
    assert heard.endswith(" 3")
