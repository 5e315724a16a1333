"""Answers in a pipe, on a terminal, and as JSON; pulls on a terminal and in a pipe."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from outrider_client.connection.link_state import LinkState
from outrider_client.core.answer_text import Span
from outrider_client.core.events import (
    Committed,
    Cycle,
    Finished,
    LinkChanged,
    RolledBack,
    Stats,
    Unverified,
    Verified,
    Warned,
)
from outrider_client.core.statistics import Statistics
from outrider_client.display.display import PlainDisplay, show_answer
from outrider_client.display.json_display import JsonDisplay
from outrider_client.display.messages import print_message
from outrider_client.display.pull_display import TextPullDisplay
from outrider_client.display.stop_texts import stop_at
from outrider_client.display.terminal import LiveDisplay, MarkdownDisplay, colored
from outrider_client.pull.pull import Pulled, PullStarted, PullWaiting
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import DraftTree

STATISTICS = Statistics(new_tokens=6, mean_acceptance_length=2.5, target_calls=3, bytes_up=1500, rolled_back=1)
ANSWER = [
    LinkChanged(LinkState.ONLINE),
    Cycle(Draft(1, 0, (1,), 2, DraftTree.chain((3,))), Verdict(1, (0,), 7)),
    Committed(0, (1,), "accepted", "one\n"),
    Committed(1, (2,), "bonus", "two"),
    LinkChanged(LinkState.OFFLINE, "cut"),
    Unverified(2, (3,), " three"),
    Unverified(3, (4,), " for"),
    Unverified(4, (5,), " fife"),
    LinkChanged(LinkState.RESUMING),
    Verified(2, 1),
    RolledBack(3, 2, " for fife"),
    Committed(3, (6,), "corrected", " four"),
    Stats(STATISTICS),
    Finished("limit", STATISTICS, "!"),
]
TEXT = "one\ntwo three four!"


OTHER_TARGET_ANSWER = [
    Committed(0, (1,), "accepted", "one\n"),
    Committed(1, (2,), "bonus", "two\n"),
    Committed(2, (3,), "bonus", "three"),
    RolledBack(0, 3, "one\ntwo\nthree"),
    Unverified(0, (1,), "one\n"),
    Unverified(1, (2,), "two\n"),
    Unverified(2, (3,), "three"),
    Verified(0, 1),
    RolledBack(1, 2, "two\nthree"),
    Committed(1, (4,), "corrected", "2\n"),
    Committed(2, (5,), "accepted", "END"),
    Finished("eos", STATISTICS),
]


@pytest.mark.parametrize(("stops", "end"), [((), "END"), (("never",), "END"), (("E",), "")])
@pytest.mark.parametrize(
    ("display_class", "shown"),
    [
        (PlainDisplay, "one\ntwo\nthree\none\n2\nEND"),
        (LiveDisplay, "one\ntwo\none\n{=2\n=}END"),
        (MarkdownDisplay, "one 2 END"),
        (JsonDisplay, '"answer", "text": "one\\n2\\nEND", "token_ids": [1, 4'),
    ],
)
def test_what_another_target_takes_back_is_shown_anew(display_class, shown, stops, end):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=40, height=20)
    display = display_class(out if display_class in (PlainDisplay, JsonDisplay) else console)
    for event in stop_at(stops, (event for event in OTHER_TARGET_ANSWER)):
        display.show(event)
    display.close()
    assert display.written.text == f"one\n2\n{end}"
    assert shown.replace("END", end) in re.sub(r"\x1b\[[?0-9]*[a-zA-Z]|\r", "", out.getvalue())


def test_plain_text_never_takes_anything_back():
    out = io.StringIO()
    display = PlainDisplay(out)
    seen = []
    for event in ANSWER:
        display.show(event)
        seen.append(out.getvalue())
    display.close()
    assert out.getvalue() == TEXT + "\n"
    assert seen[7] == seen[5] == "one\ntwo"  # unverified text waits
    assert seen[9] == "one\ntwo three"
    assert all(after.startswith(before) for before, after in itertools.pairwise(seen))


def test_one_json_object_an_event_and_one_for_the_answer():
    out = io.StringIO()
    display = JsonDisplay(out)
    for event in ANSWER:
        display.show(event)
    display.close()
    objects = [json.loads(line) for line in out.getvalue().splitlines()]
    names = [o["event"] for o in objects]
    assert names[:3] == ["link_changed", "cycle", "committed"]
    assert names[-2:] == ["finished", "answer"]
    assert objects[0]["state"] == "online"
    assert objects[1]["request"]["tree"] == {"tokens": [3], "parents": [-1]}
    answer = objects[-1]
    assert answer["text"] == TEXT
    assert answer["token_ids"] == [1, 2, 3, 6]
    assert answer["origins"] == ["accepted", "bonus", "accepted", "corrected"]
    assert answer["statistics"]["mean_acceptance_length"] == 2.5


VERDICT_KEYS = "seq path bonus finish queue_us verify_us stale tokens draft_us likelihoods tree_budget draft_levels"
REQUEST_KEYS = "seq base_len context root tree features_from assumes logprobs codec sampling"


def test_the_keys_of_a_cycle_stay_as_published():
    out = io.StringIO()
    JsonDisplay(out).show(ANSWER[1])
    cycle = json.loads(out.getvalue())
    assert list(cycle) == ["event", "request", "verdict"]
    assert list(cycle["verdict"]) == VERDICT_KEYS.split()
    assert list(cycle["request"]) == REQUEST_KEYS.split()


def shown(events, display_class=LiveDisplay, **size) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, **size)
    display = display_class(console)
    for event in events:
        display.show(event)
    display.close()
    return console.file.getvalue()


def test_terminal_ends_with_the_text_and_the_status():
    screen = shown(ANSWER, width=100, height=20)
    final = screen[screen.rindex("two three{= four=}!") :]
    assert "τ 2.50" in final
    assert "3 calls" in final
    assert "↑ 1.5 kB" in final
    assert "1 rolled back" in final


def test_a_warning_waits_for_the_end_of_the_answer(capsys):
    class Client:
        def generate(self, prompt):
            yield Warned("odd drafter")
            yield from ANSWER

    show_answer(Client(), [1], PlainDisplay(sys.stdout))
    heard = capsys.readouterr()
    assert heard.out == TEXT + "\n"
    assert heard.err == "outrider: warning: odd drafter\n"


@pytest.mark.parametrize("display_class", [LiveDisplay, MarkdownDisplay])
def test_the_text_cannot_control_the_terminal(display_class):
    said = "a\x1b]0;b\x07c\x9b31md\x7f\te\n\n"
    events = [Committed(0, (0,), "accepted", said), Unverified(1, (1,), said), Finished("unverified", STATISTICS)]
    screen = shown(events, display_class, width=80, height=20)
    assert "a\ufffd]0;b\ufffdc\ufffd31md\ufffd" in screen
    assert not any(control in screen for control in ("\x1b]", "\x07", "\x9b", "\x7f"))
    assert "\ufffd" not in colored([Span(0, (0,), "a\tb\n", "accepted")]).plain


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_servers_names_in_a_pull_cannot_control_the_terminal(is_terminal):
    odd, out = "odd\x1b]0;x\x07\u202e\u200f\nname[/b]", io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, color_system=None, width=200)
    display = TextPullDisplay(console, out)
    for event in (
        PullStarted("1", odd, odd, odd, 10, 5),
        PullWaiting(odd, 1.0),
        Pulled(Path("/x"), "1", odd, odd, odd, odd, 10, True),
    ):
        display.show(event)
    display.close()
    assert out.getvalue().count("odd\ufffd]0;x\ufffd\ufffd\ufffd name[/b]") >= 2
    assert not any(each in out.getvalue() for each in "\x07\u202e\u200f")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_plain_text_is_unchanged_in_a_pipe_and_messages_cannot_control_the_terminal(capsys, is_terminal):
    out = io.StringIO()
    out.isatty = lambda: is_terminal
    display = PlainDisplay(out)
    display.show(Committed(0, (0,), "accepted", "a\x1bb"))
    assert out.getvalue() == ("a\ufffdb" if is_terminal else "a\x1bb")
    print_message("the server says \x1b[2J")
    assert capsys.readouterr().err == "outrider: the server says \ufffd[2J\n"


def test_terminal_scrolls_what_can_no_longer_change():
    lines = [Committed(n, (n,), "accepted", f"line {n}\n") for n in range(50)]
    screen = shown([*lines, Finished("eos", STATISTICS)], width=40, height=8)
    for n in range(50):
        assert f"line {n}" in screen
    assert screen.count("line 7\n") == 1


def test_markdown_taller_than_the_terminal_is_printed_whole_at_its_end():
    lines = [Committed(n, (n,), "accepted", f"line {n}\n\n") for n in range(50)]
    screen = shown([*lines, Finished("eos", STATISTICS)], MarkdownDisplay, width=40, height=8)
    assert re.findall(r"line (\d+) *\n", screen)[-50:] == [str(n) for n in range(50)]


def test_markdown_is_rendered_except_the_unverified_end():
    events = [Committed(0, (1,), "bonus", "# Boxes\n\n- **one**\n"), Unverified(1, (2,), "- **two**")]
    screen = shown(events, MarkdownDisplay, width=40, height=20)
    assert "• one" in screen
    assert "{~- **two**~}" in screen
    screen = shown([*events, Verified(1, 1)], MarkdownDisplay, width=40, height=20)
    assert "• two" in screen[screen.rindex("• one") :]
