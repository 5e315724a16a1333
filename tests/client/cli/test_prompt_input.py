"""The prompt of `outrider generate`: text, standard input, files and the system message."""

from __future__ import annotations

import io

import pytest

from outrider_client.cli.prompt_input import read_prompt
from outrider_client.core.prompt import Segment
from outrider_proto.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self):
        return True


class WriteOnly(io.StringIO):
    """What nohup makes of standard input."""

    def read(self, size=-1):
        raise OSError(9, "Bad file descriptor")


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("typed"))


def test_a_terminal_is_read_only_where_it_is_asked_for():
    assert read_prompt("-") == "typed"
    with pytest.raises(UsageError, match="no prompt: give PROMPT or --prompt-ids"):
        read_prompt(None)


@pytest.mark.parametrize("prompt", [None, "-"])
@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (None, "^no prompt: give PROMPT"),
        (io.StringIO(), "^no prompt, and standard input is empty: give PROMPT"),
        (WriteOnly(), r"cannot be read \(Bad file descriptor\); give PROMPT"),
        (io.TextIOWrapper(io.BytesIO(b"secret\xff"), "utf-8"), "not text in this system's encoding$"),
    ],
)
def test_an_input_without_text_is_told(monkeypatch, prompt, stdin, message):
    monkeypatch.setattr("sys.stdin", stdin)
    if stdin is not None:
        stdin.seek(0)
    with pytest.raises(UsageError, match=message):
        read_prompt(prompt)


def test_files_follow_the_text_with_their_private_parts(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("cout << x;")
    two.write_text("Mail <<EMAIL: a@b.org>>")
    assert read_prompt("Read:", files=[one]) == "Read:\n\ncout << x;"
    assert read_prompt("Read:", files=[one, two]) == (
        Segment("Read:\n\ncout << x;\n\nMail "),
        Segment("a@b.org", private=True, kind="EMAIL"),
    )
    assert read_prompt("Read:", files=[two], fences=False) == "Read:\n\nMail <<EMAIL: a@b.org>>"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    bad, unclosed = tmp_path / "bad", tmp_path / "unclosed"
    bad.write_bytes(b"secret\xff")
    unclosed.write_text("one\ntwo <<private: secret")
    for file, message in ((tmp_path, "Is a directory"), (bad, "not UTF-8"), (unclosed, "line 2, column 5")):
        with pytest.raises(UsageError, match=message) as refused:
            read_prompt("hi", files=[file])
        assert str(refused.value).startswith(f"file={file}: ")
        assert "secret" not in str(refused.value)


def test_a_system_message_comes_first(capsys):
    assert read_prompt("hi", system="Be <<NAME: Ann>>.") == [
        {"role": "system", "content": (Segment("Be "), Segment("Ann", private=True, kind="NAME"), Segment("."))},
        {"role": "user", "content": "hi"},
    ]
    assert capsys.readouterr().err == "outrider: private: NAME\n"
    for text, ids, raw in (("hi", None, True), (None, "1,2", False)):
        with pytest.raises(UsageError, match="system: --raw and --prompt-ids do without"):
            read_prompt(text, ids, system="Be brief.", raw=raw)
