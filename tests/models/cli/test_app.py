"""The command line: output that others can read, and one clear line for a mistake."""

import json
import re
import sys

import pytest
from gguf_llama import write_gguf

from outrider_drafters.checkpoints.catalog import installed_file
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, read_draft_vocab
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.cli.app import main
from outrider_models.core.embedded import target_dir


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


def test_cached_and_installed_models_are_listed_and_removed(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write_gguf(target_dir(), tmp_path / "small.gguf")
    name = resolve_dir(tmp_path / "small.gguf").name
    installed_file("smollm2").parent.mkdir(parents=True)
    write_gguf(target_dir(), installed_file("smollm2"))
    assert run(monkeypatch, "info") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cached ")]
    assert re.fullmatch(
        rf"cached {name}: float32, [\d,]+ bytes, last used [\d-]+ [\d:]+, made of {tmp_path}/small\.gguf", line
    )
    assert run(monkeypatch, "remove", name, "smollm2", "smollm2") == 2
    said = capsys.readouterr()
    assert [line.partition(",")[0] for line in said.out.splitlines()] == [f"{name}: removed", "smollm2: removed"]
    assert "smollm2: neither installed nor in the cache: `outrider-models info` lists what is" in said.err
    assert not installed_file("smollm2").exists()
    assert run(monkeypatch, "info") == 0
    assert "cached" not in capsys.readouterr().out


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
