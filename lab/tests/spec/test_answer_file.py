"""Spec-Bench's answer files, read and written."""

import json

import pytest

from outrider_lab.spec.answer_file import SpecAnswer, SpecChoice, line_of, read_answers, write_answers
from outrider_proto.errors import UsageError

CHOICE = SpecChoice(0, ("One\u2028line",), (2,), (3,), (0.5,), (1, 2))


def test_files_have_spec_bench_s_keys_and_are_read_back(tmp_path):
    given = [SpecAnswer(number, "qa", "id", "model", (CHOICE,), 1.5) for number in (10, 9, "x")]
    path = tmp_path / "generate.jsonl"
    write_answers(path, given)
    assert [answer.question_id for answer in read_answers(path)] == [9, 10, "x"]
    assert read_answers(path)[0] == given[1]
    entry = json.loads(line_of(given[0]))
    assert list(entry) == ["question_id", "category", "answer_id", "model_id", "choices", "tstamp"]
    assert list(entry["choices"][0]) == [
        "index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question_id": None}, ":2: no answer in Spec-Bench's form: question_id"),
        ({"choices": [{"index": 0}]}, ":2: no answer in Spec-Bench's form: choices.0.turns: Field required"),
        ({"choices": []}, r":2: choices=\[\]: need at least one"),
        ({"choices": [json.loads(line_of(SpecAnswer(1, "", "", "", (CHOICE,), 0)))["choices"][0] | {"wall_time": [0]}]},
         r":2: wall_time=\[0.0\]: need more than 0 s"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path, change, message):
    line = line_of(SpecAnswer(1, "qa", "id", "model", (CHOICE,), 1.5))
    path = tmp_path / "answers.jsonl"
    path.write_text(line + json.dumps(json.loads(line) | change))
    with pytest.raises(UsageError, match=message):
        read_answers(path)


def test_what_holds_no_answers_is_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    with pytest.raises(UsageError, match="cannot be read"):
        read_answers(path)
    path.write_text("{")
    with pytest.raises(UsageError, match=":1: no answer in Spec-Bench's form"):
        read_answers(path)
    path.write_text("\n")
    with pytest.raises(UsageError, match="holds no answers"):
        read_answers(path)
