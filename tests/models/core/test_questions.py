"""Questions in every form, and what is wrong with a line."""

import json

import pytest

from outrider_models.core.questions import UserQuestion, read_questions
from outrider_proto.errors import UsageError


def test_every_form(tmp_path):
    path = tmp_path / "questions.jsonl"
    entries = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": []},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                      {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]},
        {"prompt": "One line\u2028of text"},
        "Plain",
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n\n", encoding="utf-8")
    assert read_questions(path) == [
        UserQuestion(81, "writing", ("Write.", "Rewrite.")),
        UserQuestion(2, "all", ("Hi", "Bye"), system="Be brief."),
        UserQuestion(3, "all", ("One line\u2028of text",)),
        UserQuestion(4, "all", ("Plain",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no questions"),
        ("{", ":1: cannot be read as JSON"),
        ('{"turns": []}', ':1: need "turns", "messages" or "prompt"'),
        ('{"turns": ["a", " "]}', ':1: need "turns", "messages" or "prompt"'),
        ('{"messages": ["a"]}', ":1: every message must be an object"),
        ('{"prompt": 3}', ':1: need "turns", "messages" or "prompt"'),
        ('{"prompt": "a", "category": 3}', ":1: question_id must be"),
        ('{"prompt": "a", "question_id": 2}\n"b"', ":2: two questions have the question_id 2"),
        ("[" * 100_000, ":1: cannot be read as JSON"),
    ],
)
def test_wrong_lines(tmp_path, text, message):
    path = tmp_path / "questions.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_questions(path)
