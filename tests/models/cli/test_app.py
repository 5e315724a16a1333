"""The command line: output that others can read, and one clear line for a mistake."""

import json
import sys

import pytest

from outrider_models.cli.app import main


def run(monkeypatch, *arguments):
    """Exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["outrider-models", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_corpus_writes_json_lines(monkeypatch, tmp_path):
    out = tmp_path / "samples.jsonl"
    assert run(monkeypatch, "corpus", "--split", "test", "--seed", "3", "--count", "2", "--out", str(out)) == 0
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(samples) == 12
    assert set(samples[0]) == {"family", "key", "messages", "answer"}


def test_corpus_shows_samples(monkeypatch, capsys):
    assert run(monkeypatch, "corpus", "--family", "math", "--count", "1") == 0
    assert "Answer:" in capsys.readouterr().out


def test_info_lists_what_is_embedded(monkeypatch, capsys):
    assert run(monkeypatch, "info") == 0
    assert "total" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus", "--family", "poetry"], "--family poetry"),
        (["corpus", "--split", "dev"], "--split dev"),
        (["corpus", "--out", "/nowhere/at/all"], "--out /nowhere/at/all"),
        (["train", "--recipe", "nothing", "--out", "OUT"], "recipe 'nothing'"),
        (["train", "--recipe", "target", "--out", "OUT", "--resume"], "holds no checkpoint"),
        (["train", "--recipe", "target", "--out", "OUT", "--minutes", "0"], "--minutes 0"),
        (["train", "--recipe", "target", "--out", "FULL"], "not an empty directory"),
        (["train", "--recipe", "target", "--out", "OUT", "--target", "FULL"], "this recipe trains a target"),
        (["train", "--recipe", "target", "--out", "OUT", "--start", "eagle2"], "this recipe trains a target"),
        (["train", "--recipe", "eagle2", "--out", "OUT", "--start", "moa"], "lacks tensors"),
        (["train", "--out", "OUT"], "either --recipe"),
        (["train", "--out", "OUT", "--recipe", "moa", "--family", "moa"], "either --recipe"),
        (["train", "--out", "OUT", "--recipe", "moa", "--set", "length.batch=1"], "belong to --family"),
        (["train", "--out", "OUT", "--family", "moa"], "needs --data"),
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL"], "cannot be read"),
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL", "--minutes", "3"], "belong to --recipe"),
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL", "--set", "x"], "TABLE.KEY=VALUE"),
        (["train", "--out", "OUT", "--family", "oracle", "--data", "FULL"], "family 'oracle'"),
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL", "--settings", "OUT"], "out"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    places = {"OUT": str(tmp_path / "out"), "FULL": str(tmp_path / "full")}
    assert run(monkeypatch, *(places.get(a, a) for a in arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()
