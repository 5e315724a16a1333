"""What is asked: turn by turn, by category, only what fits; and the corpus only of targets that know it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.prompts import QuestionSource
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import FAMILIES
from outrider_proto.errors import UsageError

EXAMPLES = Path(__file__).parents[3] / "examples" / "questions.jsonl"


@pytest.fixture(scope="module")
def models() -> LocalModels:
    return LocalModels.load(ClientConfig(target=target_dir(), drafter=NO_DRAFTER))


def written(folder, *entries: object) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def test_turns_are_asked_with_the_answers_so_far_in_the_history(tmp_path, models):
    entry = {"question_id": 7, "category": "writing", "turns": ["One?", "Two?", "Three?"]}
    source = QuestionSource.of(target_dir(), written(tmp_path, entry, {"prompt": "Alone?"}))
    asked_before = []

    def answer(prompt, limit):
        asked_before.append(tuple(prompt))
        return models.text.encode_part(f" answer {len(asked_before)} ")[:limit]

    asked = source.per_family(models, None, 20, answer)
    assert [(one.family, one.name) for one in asked] == [
        ("writing", "7.1"), ("writing", "7.2"), ("writing", "7.3"), ("other", "2"),
    ]  # fmt: skip
    assert asked_before == [one.prompt for one in asked[:2]]  # nobody needs an answer to the last turn
    texts = [models.decode(one.prompt) for one in asked]
    assert "Two?" not in texts[0]
    order = [texts[2].index(part) for part in ("One?", "answer 1", "Two?", "answer 2", "Three?")]
    assert order == sorted(order)
    as_chat = [{"role": "user", "content": "Alone?"}]
    assert list(asked[3].prompt) == models.encode(as_chat, raw=False)


def test_what_does_not_fit_is_left_out_and_told(tmp_path, models, capsys):
    long = {"question_id": "long", "category": "rag", "turns": ["word " * models.max_context]}
    later = {"question_id": "later", "category": "rag", "turns": ["Hi", "word " * models.max_context]}
    source = QuestionSource.of(target_dir(), written(tmp_path, long, later))
    asked = source.per_family(models, None, 4, lambda prompt, limit: [5])
    assert [one.name for one in asked] == ["later.1"]
    told = capsys.readouterr().err
    assert "question long, turn 1, is left out: its prompt has" in told
    assert "question later, turn 2, is left out" in told
    with pytest.raises(UsageError, match="none fits the target's context of 1024"):
        QuestionSource.of(target_dir(), written(tmp_path, long)).per_family(models, None, 4, lambda *_: [5])


def test_categories_are_chosen_and_come_in_turn(tmp_path):
    categories = ["a", "a", "b", "a", "c"]
    path = written(tmp_path, *({"category": name, "turns": [f"{n}"]} for n, name in enumerate(categories)))
    source = QuestionSource.of(target_dir(), path)
    assert [one.category for one in source.in_turn(None)] == ["a", "b", "c", "a", "a"]
    assert [one.category for one in source.in_turn(2)] == ["a", "b"]
    assert QuestionSource.of(target_dir(), path, ["c", "a"]).families == ("a", "c")
    with pytest.raises(UsageError, match="families='d': choose from a, b, c"):
        QuestionSource.of(target_dir(), path, ["d"])
    other = written(tmp_path, *({"category": name, "turns": ["?"]} for name in categories))
    assert QuestionSource.of(target_dir(), other).settings != source.settings


def test_the_corpus_is_for_targets_with_its_tokenizer(tmp_path):
    assert QuestionSource.of(target_dir()).families == FAMILIES
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="come only with the embedded target: give --questions FILE"):
        QuestionSource.of(tmp_path)


def test_the_examples_have_every_sub_task_and_two_of_two_turns(models):
    source = QuestionSource.of(target_dir(), EXAMPLES)
    assert len(source.asked) == 8
    assert {"translation", "summarization", "qa", "math_reasoning", "rag"} < set(source.families)
    assert sum(len(question.turns) == 2 for question in source.asked) == 2
    assert len(source.per_family(models, None, 64, lambda *_: [5])) == 10


def test_trace_asks_the_questions_turn_by_turn(tmp_path):
    path = written(tmp_path, {"question_id": 81, "category": "writing", "turns": ["Hi", "Bye"]}, {"prompt": "x"})
    command = ["trace", "--target", str(target_dir()), "--drafter", "lookup", "--questions", str(path), "--baseline"]
    result = CliRunner().invoke(app, [*command, "--set", "families=writing", "--max-new-tokens", "3"])
    assert result.exit_code == 0, result.output
    traced = json.loads(result.stdout)["questions"]
    assert [(one["name"], one["category"], one["matches_baseline"]) for one in traced] == [
        ("81.1", "writing", True), ("81.2", "writing", True),
    ]  # fmt: skip


def test_trace_needs_either_ids_or_questions():
    result = CliRunner().invoke(app, ["trace", "--target", str(target_dir()), "--drafter", "lookup"])
    assert isinstance(result.exception, UsageError)
    assert "need either --prompt-ids or --questions" in str(result.exception)
