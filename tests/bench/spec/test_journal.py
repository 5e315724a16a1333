"""Records of a run of Spec-Bench: what is kept of one that was interrupted, and what is refused."""

import contextlib

import pytest

from outrider_bench.spec.answer_file import read_answers
from outrider_bench.spec.journal import RECORDS, QuestionRecord, TurnRecord, open_journal
from outrider_proto.errors import UsageError

SETTINGS = {"runs": 2, "dtype": "float32"}


def record(question: int, way: str = "plain", run: int = 0) -> QuestionRecord:
    turn = TurnRecord("text", 5, (1, 2, 3), (1, 2), 0.5, 0.1)
    return QuestionRecord(run, question, "qa", way, f"{question}", 1.0, (turn, turn))


def interrupted(folder) -> None:
    with contextlib.suppress(KeyboardInterrupt), open_journal(folder, "toy", SETTINGS, resume=False) as journal:
        for one in (record(2), record(1), record(1, "generate")):
            journal.take(one)
        raise KeyboardInterrupt


def test_lines_are_there_as_they_come_and_sorted_at_the_end(tmp_path):
    with open_journal(tmp_path, "toy", SETTINGS, resume=False) as journal:
        for one in (record(2), record(1), record(1, run=1)):
            journal.take(one)
        assert [one.question_id for one in read_answers(tmp_path / "plain.jsonl")] == [2, 1, 1]
        journal.complete()
    first, second = read_answers(tmp_path / "plain.jsonl")
    assert (first.question_id, first.model_id, [choice.index for choice in first.choices]) == (1, "toy-plain", [0, 1])
    assert second.choices[0].turns == ("text", "text")
    assert second.choices[0].decoding_steps == (2, 2)
    assert second.choices[0].new_tokens == (3, 3)
    assert second.choices[0].accept_lengths == (1, 2, 1, 2)


def test_an_interrupted_run_is_continued(tmp_path):
    interrupted(tmp_path)
    path = tmp_path / RECORDS
    path.write_text(path.read_text() + '{"answer": {"run"')  # a line without an end
    with open_journal(tmp_path, "toy", SETTINGS, resume=True) as journal:
        assert (0, 2, "plain") in journal
        assert (0, 2, "generate") not in journal
        journal.take(record(2, "generate"))
        journal.complete()
    assert [answer.question_id for answer in read_answers(tmp_path / "generate.jsonl")] == [1, 2]
    with open_journal(tmp_path, "toy", SETTINGS, resume=True) as journal:
        assert len(journal.taken) == 4


def test_an_unfinished_run_is_not_replaced_unasked(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(UsageError, match="holds 3 answers of an unfinished run: continue with --resume"):
        open_journal(tmp_path, "toy", SETTINGS, resume=False).__enter__()
    with pytest.raises(UsageError, match="runs=3 here, 2 there"):
        open_journal(tmp_path, "toy", SETTINGS | {"runs": 3}, resume=True).__enter__()


def test_a_finished_run_is_replaced_with_its_files(tmp_path):
    with open_journal(tmp_path, "toy", SETTINGS, resume=False) as journal:
        journal.take(record(1, "moa"))
        journal.complete()
    with open_journal(tmp_path, "toy", SETTINGS, resume=False) as journal:
        assert not journal.taken
        assert not (tmp_path / "moa.jsonl").exists()


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / RECORDS).write_text("notes\n")
    with pytest.raises(UsageError, match="no records of outrider-bench spec: name another directory"):
        open_journal(tmp_path, "toy", SETTINGS, resume=False).__enter__()
    (tmp_path / RECORDS).write_text('{"settings": {}}\n3\n')
    with pytest.raises(UsageError, match=":2: no record of outrider-bench spec"):
        open_journal(tmp_path, "toy", {}, resume=True).__enter__()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        open_journal(tmp_path / "file", "toy", SETTINGS, resume=False).__enter__()
