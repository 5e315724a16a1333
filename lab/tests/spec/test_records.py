"""Records of a run of Spec-Bench, as rows of a study and as answer files."""

from outrider_lab.spec.answer_file import read_answers, write_answers
from outrider_lab.spec.records import QuestionRecord, TurnRecord, answers_of


def record(question: int, way: str = "plain", run: int = 0) -> QuestionRecord:
    turn = TurnRecord("text", 5, (1, 2, 3), (1, 2), 0.5, 0.1)
    return QuestionRecord(run, question, "qa", way, f"{question}", 1.0, (turn, turn))


def test_a_file_is_sorted_with_one_line_for_all_runs_of_a_question(tmp_path):
    answers = answers_of((record(2), record(1, run=1), record(1), record(1, "moa")), "toy")
    assert answers.keys() == {"plain", "moa"}
    write_answers(tmp_path / "plain.jsonl", answers["plain"])
    first, second = read_answers(tmp_path / "plain.jsonl")
    assert (first.question_id, first.model_id, [choice.index for choice in first.choices]) == (1, "toy-plain", [0, 1])
    assert second.choices[0].turns == ("text", "text")
    assert second.choices[0].decoding_steps == (2, 2)
    assert second.choices[0].new_tokens == (3, 3)
    assert second.choices[0].accept_lengths == (1, 2, 1, 2)
