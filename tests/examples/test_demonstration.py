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
    answer = parts("recording").Answer("code", "Write f.", started_s=0.0)
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


@pytest.mark.parametrize("outages", [[(0.25, 0.7)], []])
def test_the_picture_is_drawn_with_and_without_an_outage(parts, disturbed, tmp_path, outages):
    recording = parts("recording").Recording([disturbed], outages)
    parts("picture").draw(recording, tmp_path / "new" / "demo.png", "Title", "footnote")
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_terminal_shows_every_token_and_a_row_of_figures(parts, disturbed):
    terminal = parts("terminal")
    console = Console(width=80, record=True, file=sys.stderr)
    with terminal.AnswerView(console, disturbed) as view:
        view.refresh()
    console.print(terminal.table(parts("recording").Recording([disturbed])))
    shown = console.export_text()
    assert "abc[-de-]D!" in shown
    assert "2.00" in shown


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "proxy"])
def test_the_demo_ends_by_itself_with_the_undisturbed_answer(tmp_path, engine):
    options = ["--engine", engine, "--per-family", "1", "--cut-from", "0", "--outage-s", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), *options], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "demo.json").read_text())
    assert len(report["outages"]) == 1
    assert [a["as_without_outage"] for a in report["answers"] if a["as_without_outage"] is not None] == [True]
    assert report["link"].startswith("emulated (TCP relay)" if engine == "proxy" else "emulated (")
    assert {"command", "versions", "processor"} <= report["made_by"].keys()
    assert (tmp_path / "demo.png").stat().st_size > 10_000
