"""The command line: output that others can read, and one clear line for a mistake."""

import json
import sys

import pytest

from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, read_draft_vocab
from outrider_models.cli.app import main


def run(monkeypatch, *arguments):
    """Exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["outrider-models", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_a_target_writes_chats(monkeypatch, capsys, tmp_path):
    out = tmp_path / "chats.jsonl"
    options = ["--out", str(out), "--tokens", "40", "--set", "batch=4", "--set", "max-new-tokens=32"]
    assert run(monkeypatch, "distill", *options) == 0
    assert f"{out}: " in capsys.readouterr().out
    chats = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sum(chat["tokens"] for chat in chats) >= 40


def test_a_draft_vocabulary_is_chosen_and_bundled(monkeypatch, capsys, tmp_path):
    data, out = tmp_path / "chats.jsonl", tmp_path / "vocab.json"
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello! Hello?"}]}
    data.write_text((json.dumps({**chat, "kind": "greeting"}) + "\n") * 2)
    chosen = ["--data", str(data), "--size", "16", "--out", str(out)]
    assert run(monkeypatch, "draft-vocab", *chosen) == 0
    shown = capsys.readouterr().out
    assert "greeting" in shown
    assert f"{out}: 16 tokens" in shown
    bundle = ["--drafter", "eagle2", "--weights", "int4", "--out", str(tmp_path / "bundle"), "--draft-vocab", str(out)]
    assert run(monkeypatch, "bundle", *bundle) == 0
    assert "int4 (the embedding, which is the head too, int8)" in capsys.readouterr().out
    assert len(read_draft_vocab(tmp_path / "bundle/drafter" / DRAFT_VOCAB, 10**6)) == 16


def test_info_lists_what_is_embedded(monkeypatch, capsys):
    assert run(monkeypatch, "info") == 0
    assert "total" in capsys.readouterr().out


def test_families_lists_them_with_their_options(monkeypatch, capsys):
    assert run(monkeypatch, "families") == 0
    said = capsys.readouterr().out
    assert "\nmoa: reads K/V" in said
    assert "  tli: number of target layers that the client runs (paper, 3.2) [a whole number of at least 0]\n" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL"], "cannot be read"),
        (["train", "--out", "OUT", "--family", "moa", "--data", "FULL", "--settings", "OUT"], "out"),
        (["bundle", "--out", "OUT"], "drafter: missing"),
        (["bundle", "--drafter", "moa", "--out", "OUT", "--weights", "int3"], 'weights="int3"'),
        (["bundle", "--drafter", "moa", "--draft-vocab", "7", "--out", "OUT"], "draft_vocab=7: it has no"),
        (["distill", "--out", "OUT", "--set", "dtype=int3"], 'dtype="int3"'),
        (["distill", "--out", "OUT", "--prompts", "FULL"], "cannot be read"),
        (["distill", "--out", "OUT", "--target", "nowhere"], "nowhere: no such directory or file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    places = {"OUT": str(tmp_path / "out"), "FULL": str(tmp_path / "full")}
    assert run(monkeypatch, *(places.get(a, a) for a in arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("outrider-models: ")
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()
