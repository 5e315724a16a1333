"""The demo's record and picture, from events made up here; and the demo itself."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Committed, Cycle, Finished, LinkChanged, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import DraftTree

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def parts(monkeypatch):
    """Imports a part of the demo as demo.py does."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name: importlib.import_module(f"demonstration.{name}")


@pytest.fixture
def disturbed(parts):
    """An answer of seven tokens, three of them unverified for a while, of which one stood."""
    answer = parts("recording").Answer("code", "Write f.", "auto", started_s=0.0)
    draft = Draft(seq=1, base_len=0, context=(), root=5, tree=DraftTree.chain((6, 7)))
    told = [
        Cycle(draft, Verdict(seq=1, path=(0,), bonus=8)),
        Committed(0, (6,), "accepted", "a"),
        Committed(1, (8,), "bonus", "b"),
        LinkChanged(LinkState.OFFLINE),
        *(Unverified(2 + i, (9 + i,), text) for i, text in enumerate("cde")),
        LinkChanged(LinkState.RESUMING),
        Cycle(replace(draft, tree=DraftTree.chain((9, 10, 11))), Verdict(seq=2, path=(0,), bonus=20)),
        Verified(2, 1),
        RolledBack(3, 2, "de"),
        Committed(3, (20,), "corrected", "D"),
        LinkChanged(LinkState.ONLINE),
        Finished("eos", Statistics(new_tokens=4, mean_acceptance_length=2.0, rolled_back=2, outages=1), "!"),
    ]
    for number, event in enumerate(told):
        answer.note(event, now=0.1 * number)
    return answer


def test_the_record_keeps_what_stands_and_what_was_taken_back(disturbed):
    assert disturbed.text == "abcD!"
    assert disturbed.num_committed == 4
    assert [(span.text, span.kind) for span in disturbed.spans] == [
        ("a", "accepted"),
        ("b", "bonus"),
        ("c", "verified"),
        ("d", "rolled back"),
        ("e", "rolled back"),
        ("D", "corrected"),
        ("!", "bonus"),
    ]
    assert [state for _, state in disturbed.states] == ["offline", "resuming", "online"]
    assert [(verdict.drafted, verdict.accepted) for verdict in disturbed.verdicts] == [(2, 1)]


@pytest.fixture
def answers(parts, disturbed):
    """A question answered in both modes, the second at twice the speed, and again with the outage."""
    both = [
        parts("recording").Answer("code", "Write f.", mode, started_s=at)
        for mode, at in (("auto", -4.0), ("stream", -3.0))
    ]
    for answer, finished in zip(both, (-3.5, -2.0), strict=True):
        answer.note(Committed(0, (6, 7), "accepted", "ab"), answer.started_s + 0.1)
        answer.note(Finished("eos", Statistics(new_tokens=2), "!"), finished)
    for answer in (*both, disturbed):
        answer.token_ids = (6, 7)
    return [*both, disturbed]


def test_the_modes_are_compared_without_the_answer_of_the_outage(parts, answers):
    recording = parts("recording").Recording(answers, [(0.25, 0.7)])
    assert [[answer.mode for answer in pair] for pair in recording.pairs] == [["stream", "auto"]]
    assert recording.speed_up == pytest.approx(2)
    assert "2.00 times" in parts("terminal").speed_summary(recording)
    assert "3 tokens alone, the target kept 1" in parts("terminal").outage_summary(recording)


@pytest.mark.parametrize("outages", [[(0.25, 0.7)], []])
def test_the_picture_is_drawn_with_and_without_an_outage(parts, answers, tmp_path, outages):
    recording = parts("recording").Recording(answers, outages)
    parts("picture").draw(recording, tmp_path / "new" / "demo.png", "Title", "footnote")
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_terminal_shows_every_token_and_a_row_of_figures(parts, disturbed):
    terminal = parts("terminal")
    console = Console(width=80, record=True, file=sys.stderr)
    with terminal.AnswerView(console, disturbed) as view:
        view.refresh()
    disturbed.token_ids = (6, 8, 9, 20)
    console.print(terminal.table(parts("recording").Recording([disturbed])))
    shown = console.export_text()
    assert "abc[-de-]D!" in shown
    assert "2.00" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
@pytest.mark.parametrize("engine", ["auto", "proxy"])
def test_the_demo_ends_by_itself_with_the_targets_own_answers(tmp_path, engine):
    options = ["--target", "embedded", "--engine", engine, "--count", "2", "--cut", "1", "--outage-s", "1"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), *options, "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=840, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    assert len(report["outages"]) == 1
    assert [answer["mode"] for answer in report["answers"]] == ["stream", "auto", "auto", "stream", "auto"]
    assert all(answer["is_targets_own"] and answer["token_ids"] for answer in report["answers"])
    assert report["link"].startswith("emulated (TCP relay)" if engine == "proxy" else "emulated (")
    assert {"command", "versions", "processor"} <= report["made_by"].keys()
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_questions_come_from_a_file_or_the_corpus(parts):
    real = parts("questions").questions_of(EXAMPLES / "questions.jsonl", 3, seed=1)
    assert [len(question.messages) for question in real] == [1, 1, 1]
    assert all(question.messages[0]["content"] == question.text for question in real)
    drawn = parts("questions").questions_of(None, 8, seed=1)
    assert len({question.text for question in drawn}) == 8
