"""The draft history's file: what is kept, how much, by whom, and what becomes of a damaged one."""

import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from outrider_client.models import draft_history
from outrider_client.models.draft_history import DraftHistory, clear_histories, kept_histories

VOCABULARY = 1000


def history(folder: Path, server: str = "here:1", limit_mb: int = 1) -> DraftHistory:
    return DraftHistory(server, "tokenizer", VOCABULARY, limit_mb, folder / "draft_history")


def texts(kept: DraftHistory) -> list[list[int]]:
    tokens = kept.texts().tokens
    return [piece[piece >= 0].tolist() for piece in np.split(tokens, np.flatnonzero(tokens < 0))[:-1]]


def test_answers_are_there_for_the_next_client(tmp_path):
    first = history(tmp_path)
    assert texts(first) == []
    assert not first.file.parent.exists()  # nothing is made by looking
    first.add((1, 2, 3))
    first.add(())
    first.add((4,))
    history(tmp_path).add((5,))  # as another process does
    first.add((6,))
    assert texts(first) == texts(history(tmp_path)) == [[1, 2, 3], [4], [5], [6]]
    assert first.take_warnings() == []


def test_each_server_has_its_own(tmp_path):
    """What one server has said is not drafted to another."""
    history(tmp_path, "one:1").add((1, 2))
    history(tmp_path, "other/../:1").add((3, 4))
    assert texts(history(tmp_path, "one:1")) == [[1, 2]]
    assert len(kept_histories(tmp_path / "draft_history")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["draft_history"]


def test_only_the_user_can_read_it(tmp_path):
    kept = history(tmp_path)
    for _ in range(2):  # written, then appended to
        kept.add((1, 2))
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept.file.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(kept.file.parent.stat().st_mode) == 0o700


def test_it_is_bounded_and_the_newest_stay(tmp_path):
    kept = history(tmp_path)
    for number in range(30):
        kept.add([number] * 20_000)
        assert kept.file.stat().st_size <= draft_history.MB
    found = [piece[0] for piece in texts(kept)]
    assert found == list(range(30 - len(found), 30))
    assert 9 <= len(found) <= 12
    kept.add([7] * 400_000)  # more than fits: its end
    assert kept.file.stat().st_size <= draft_history.MB
    assert {token for piece in texts(kept) for token in piece} == {7}
    assert kept.texts().num_bytes < 5 * draft_history.MB


def test_the_limit_is_that_of_the_file_however_long_the_answers_are(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_history, "MB", 200_000)
    for length in (700, 1100):
        kept = history(tmp_path, f"{length}:1")
        for number in range(80):
            kept.add([number] * length)
        assert 150_000 < kept.file.stat().st_size <= 200_000
        assert len(texts(kept)) > 30
    monkeypatch.setattr(draft_history, "MB", 100_000)
    smaller = history(tmp_path, "700:1")
    smaller.add([1])
    assert smaller.file.stat().st_size <= 100_000
    assert texts(smaller)[-2:] == [[79] * 700, [1]]


def test_processes_and_threads_may_add_at_once(tmp_path):
    code = (
        "import sys; from pathlib import Path; from outrider_client.models.draft_history import DraftHistory\n"
        f"kept = DraftHistory('here:1', 'tokenizer', {VOCABULARY}, 1, Path(sys.argv[1]) / 'draft_history')\n"
        "for number in range(40): kept.add([int(sys.argv[2])] * 9)\n"
        "assert not kept.take_warnings()"
    )
    others = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)]) for number in (1, 2)]
    kept = history(tmp_path)
    threads = [threading.Thread(target=lambda: [kept.add([3] * 9) for _ in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(60) for other in others] == [0, 0]
    assert sorted(piece[0] for piece in texts(kept)) == [1] * 40 + [2] * 40 + [3] * 40
    assert kept.take_warnings() == []


def test_what_was_cleared_is_forgotten_by_clients_that_run(tmp_path):
    kept = history(tmp_path)
    kept.add((1, 2))
    assert list(kept_histories(kept.file.parent)) == [kept.file]
    clear_histories(kept.file.parent)
    assert texts(kept) == []
    assert not kept_histories(kept.file.parent)
    kept.add((3,))
    assert texts(kept) == [[3]]


def damage(file: Path, how: str) -> None:
    match how:
        case "cut":
            file.write_bytes(file.read_bytes()[:-2000])
        case "record":
            with closing(sqlite3.connect(file)) as damaged, damaged:
                damaged.execute("UPDATE answers SET tokens = ?", (b"\1\2",))
        case _:
            DraftHistory("here:1", "tokenizer", VOCABULARY + 1, 1, file.parent).add((VOCABULARY,))


@pytest.mark.parametrize("how", ["cut", "record", "token"])
@pytest.mark.parametrize("adding", [False, True])
def test_a_damaged_file_is_told_once_and_started_anew(tmp_path, how, adding):
    history(tmp_path).add((1, 2, 3))
    kept = history(tmp_path)
    damage(kept.file, how)
    if adding:
        kept.add((4,))
    assert texts(kept) == ([[4]] if adding else [])
    (warning,) = kept.take_warnings()
    assert "damaged draft history" in warning
    assert "\n" not in warning
    kept.add((5,))
    assert texts(history(tmp_path)) == ([[4], [5]] if adding else [[5]])
    assert kept.take_warnings() == []


def test_a_lock_that_is_held_delays_nothing_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_history, "_LOCK_S", 0.05)
    history(tmp_path).add((1,))
    kept = history(tmp_path)
    with closing(sqlite3.connect(kept.file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert texts(kept) == []
    assert "database is locked" in kept.take_warnings()[0]
    assert texts(kept) == [[1]]


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n, zeroblob(4) FROM r"


def run_sql(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as opened, opened:
        for statement in statements:
            opened.execute(statement)


STRANGE = {
    "answers without end": ("DROP TABLE answers", f"CREATE VIEW answers AS {ENDLESS}"),
    "a trigger without end": (f"CREATE TRIGGER t INSERT ON answers BEGIN INSERT INTO answers {ENDLESS}; END",),
    "text for tokens": ("INSERT INTO answers (tokens) VALUES ('text')",),
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_others_put_in_its_place_is_told_and_costs_nothing(tmp_path, what):
    history(tmp_path).add((1, 2, 3))
    kept = history(tmp_path)
    run_sql(kept.file, *STRANGE[what])
    assert texts(kept) == []
    kept.add((4,))
    (warning,) = kept.take_warnings()
    assert "started anew" in warning
    assert "\n" not in warning


def test_a_full_disk_loses_nothing_that_was_whole(tmp_path, room_for):
    kept = history(tmp_path)
    for _ in range(20):
        kept.add((1, 2, 3))
    with room_for(kept.file.stat().st_size + 100):
        kept.add([5] * 20_000)
        (warning,) = kept.take_warnings()
        assert "drafting without the history" in warning
        with room_for(0):
            assert texts(history(tmp_path)) == [[1, 2, 3]] * 20  # as a new client finds it
    kept.add((6,))
    assert texts(kept) == texts(history(tmp_path)) == [*[[1, 2, 3]] * 20, [6]]


def test_a_process_that_is_killed_in_the_middle_loses_nothing_that_was_whole(tmp_path):
    kept = history(tmp_path)
    for _ in range(20):
        kept.add((1, 2, 3))
    code = (
        "import sqlite3, sys, time; file = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for each in ('PRAGMA cache_size = 1', 'BEGIN IMMEDIATE', 'DELETE FROM answers'): file.execute(each)\n"
        "for _ in range(99): file.execute('INSERT INTO answers (tokens) VALUES (zeroblob(8000))')\n"
        "print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(kept.file)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        assert kept.file.with_name(f"{kept.file.name}-journal").exists()  # it has written some of it
        other.kill()
    assert texts(kept) == texts(history(tmp_path)) == [[1, 2, 3]] * 20
    assert kept.take_warnings() == []


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    kept = history(tmp_path)
    kept.file.parent.mkdir()
    table = "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, tokens BLOB NOT NULL)"
    run_sql(kept.file, table, "INSERT INTO answers (tokens) VALUES (x'07000000')")
    assert texts(kept) == [[7]]
