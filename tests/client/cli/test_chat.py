"""The chat: its commands, its turns, and its looks on a real terminal."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import astuple
from pathlib import Path
from unittest.mock import Mock

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from outrider_client.cli.chat.commands import COMMANDS
from outrider_client.cli.chat.conversation import ChatConversation
from outrider_client.cli.chat.input import _from_terminal, read_lines, without_private
from outrider_client.cli.chat.link import chat_link
from outrider_client.cli.chat.repl import ChatRepl
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import UNLIMITED, ClientConfig
from outrider_client.core.events import Committed, Finished
from outrider_client.core.prompt import Segment
from outrider_client.core.statistics import Statistics
from outrider_proto.errors import LinkError, UsageError

from .terminal import Terminal


def test_an_answer_to_something_private_is_private():
    conversation = ChatConversation("the enclosed")
    conversation.add_question("Greet <<private: Ann>>.")
    assert conversation.messages[0]["content"] == (
        Segment("Greet "),
        Segment("Ann", private=True),
        Segment("."),
        Segment("\n"),
        Segment("the enclosed", private=True),
    )
    conversation.add_answer("Hello Ann", private=conversation.is_private)
    assert conversation.messages[1]["content"] == (Segment("Hello Ann", private=True),)
    assert conversation.text() == (
        "user: Greet <<private: Ann>>.\n<<private: the enclosed>>\n\nassistant: <<private: Hello Ann>>"
    )
    conversation.clear()
    conversation.add_question("Hello")
    assert conversation.messages == [{"role": "user", "content": "Hello"}]
    assert not conversation.is_private


@pytest.mark.parametrize(
    "line",
    [
        "A <<private: 12>> C",
        "A <<12>> C",
        "A <<private: 12> C",
        "<<EMAIL: 1@2.C>> <<private: 1\n2>>",
        "A <<private: 12>> <<NAME: 2",
        "A <<NAME: 12 <<NAME: 2>> 2>>",
        "`A <<NAME: 12>>` 2",
    ],
)
def test_a_history_keeps_nothing_private(line):
    kept = without_private(line)
    assert "<<private: >>" in kept
    assert not set("12@") & set(kept)


class Scripted:
    """A client with scripted answers that records its prompts."""

    link_state = LinkState.ONLINE

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []

    def begin_conversation(self):
        pass

    def generate(self, prompt, **overrides):
        self.asked.append(([dict(message) for message in prompt], overrides))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield Committed(0, (1,), "bonus", answer)
        yield Finished("eos", Statistics(new_tokens=1, target_calls=2, tokens_per_second=4.0, rtt_ms=12.0))


def chat(client, *lines, config=None, stays=False):
    ChatRepl(client, config or ClientConfig(), ChatConversation(), stays=stays).run(lines)


def test_turns_add_up_and_commands_take_effect(capsys, tmp_path):
    secret, saved = tmp_path / "secret", tmp_path / "saved"
    secret.write_text("4711")
    client = Scripted("one", "two", "three")
    chat(
        client,
        "/help",
        "/stats",
        "hi",
        "/mode stream",
        "/privacy placeholder",
        f"/private {secret}",
        "//usr?",
        "/stats",
        "/link",
        f"/save {saved}",
        "/clear",
        "again",
        "/history",
        "/bye",
        "never asked",
    )
    (_, before), (second, after), (third, _) = client.asked
    assert (before["mode"], before["privacy"]) == ("auto", "local")
    assert (after["mode"], after["privacy"]) == ("stream", "placeholder")
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[2]["content"] == (Segment("/usr?"), Segment("\n"), Segment("4711", private=True))
    assert third == [{"role": "user", "content": "again"}]
    assert saved.read_text() == "user: hi\n\nassistant: one\n\nuser: /usr?\n<<private: 4711>>\n\nassistant: two\n"
    out = capsys.readouterr().out
    assert all(f"/{name}" in out for name in COMMANDS)
    assert "no answer yet" in out
    assert "all 2" in out
    assert "online, R 12 ms" in out
    assert out.endswith("user: again\n\nassistant: three\n")


def test_a_later_failure_than_that_of_the_first_answer_does_not_end_the_chat(capsys):
    client = Scripted("one", LinkError("gone"), "three")
    chat(client, "hi", "lost", "/mode warp", "/lod", "/link cut", "/private /nowhere", "<<NAME: b", "/save", "again")
    assert [message["content"] for message in client.asked[-1][0]] == ["hi", "one", "again"]
    said = capsys.readouterr().err.splitlines()
    wanted = [
        "gone",
        "/mode warp: choose one of auto",
        "/lod: no such command; did you mean load?",
        "--profile",
        "/nowhere",
        "does not close",
        "/save",
    ]
    assert all(part in line for part, line in zip(wanted, said, strict=True))
    with pytest.raises(LinkError):
        chat(Scripted(LinkError("nobody there")), "/mode", "hi")


def test_files_of_a_chat_are_for_its_user_alone(tmp_path, monkeypatch):
    chat(Scripted("one"), "hi", f"/save {tmp_path / 'saved'}")
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(
        "prompt_toolkit.PromptSession.prompt", lambda self: self.history.store_string("typed") or quit()
    )
    with pytest.raises(SystemExit):
        next(_from_terminal(tmp_path / "typed"))
    assert (tmp_path / "typed").stat().st_mode & 0o777 == 0o600
    assert "typed" in (tmp_path / "typed").read_text()


def test_a_saved_conversation_is_not_replaced_unasked(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    chat(Scripted("one", "two"), "hi", "/save ~/saved", "you", "/save ~/saved", "/undo", "/save ~/saved!")
    assert (tmp_path / "saved").read_text() == "user: hi\n\nassistant: one\n"
    heard = capsys.readouterr()
    assert heard.err == f"outrider: {tmp_path}/saved exists: /save ~/saved! replaces it\n"
    assert heard.out.count("saved to ") == 2


def test_the_system_message_leads_every_prompt_until_it_is_removed(capsys):
    client = Scripted("one", "two", "three")
    chat(client, "/system", "/system Be brief.", "hi", "/clear", "you", "/system", "/system -", "who", "/history")
    first, second, third = ([tuple(message.values()) for message in prompt] for prompt, _ in client.asked)
    assert first == [("system", "Be brief."), ("user", "hi")]
    assert second == [("system", "Be brief."), ("user", "you")]
    assert third == [("user", "you"), ("assistant", "two"), ("user", "who")]
    out = capsys.readouterr().out
    assert out.startswith("no system message\n")
    assert "\nBe brief.\n" in out
    assert out.endswith("user: you\n\nassistant: two\n\nuser: who\n\nassistant: three\n")


def test_a_private_system_message_keeps_the_conversation_here(capsys):
    chat(Scripted("one", "two"), "/system Call me <<NAME: Ann>>.", "hi", "/clear", "/system -", "hi")
    alone = "outrider: this conversation holds private text: answered on this device alone, until /system -"
    assert capsys.readouterr().err.splitlines() == [alone]


def test_who_types_can_ask_again_and_undo(capsys):
    client = Scripted(LinkError("nobody there"), "one", "two", LinkError("gone"), "three", LinkError("gone"), "four")
    again = ("/retry", "/undo", "hi", "/retry", "/retry", "/retry", "again", "/history")
    chat(client, *again, "lost", "/undo", "/undo", "c", stays=True)
    prompts = [[message["content"] for message in prompt] for prompt, _ in client.asked]
    assert prompts[:5] == [["hi"], ["hi"], ["hi"], ["hi"], ["hi", "two", "again"]]
    assert prompts[-1] == ["hi", "two", "c"]
    heard = capsys.readouterr()
    assert heard.err.splitlines() == [
        "outrider: /retry: there is no question yet",
        "outrider: /undo: there is no question yet",
        "outrider: nobody there; /retry asks again",
        *["outrider: gone; /retry asks again"] * 2,
    ]
    assert "user: hi\n\nassistant: two\n\nuser: again\n\nassistant: three\n" in heard.out


def test_numbers_are_set_for_the_next_answers(capsys):
    client = Scripted("one", "two", "three")
    numbers = ("temperature 0.7", "max-tokens 5", "parameter top_k 4", "top-p 0.9", "seed 3", "repetition-penalty 1.1")
    settings = ("/set", *(f"/set {number}" for number in numbers), "/set")
    wrong = ("/set speed 9", "/set temperature warm", "/set temperature -1", "/set max-tokens 0")
    config = ClientConfig(max_new_tokens=UNLIMITED)
    chat(client, "hi", *settings, "hi", *wrong, "/set max-tokens all", "hi", config=config)
    used = [(*astuple(overrides["sampling"])[:4], overrides["max_new_tokens"]) for _, overrides in client.asked]
    assert used == [(0.0, 0, 1.0, 0, UNLIMITED), (0.7, 4, 0.9, 3, 5), (0.7, 4, 0.9, 3, UNLIMITED)]
    heard = capsys.readouterr()
    assert "temperature 0, top-k 0, top-p 1, seed 0, epsilon 0.09, " in heard.out
    assert "repetition-penalty 1.1, max-tokens 5\n" in heard.out
    expected = ["did you mean seed?", "temperature warm: need a number", "temperature=-1", "max_new_tokens=0"]
    assert all(part in line for part, line in zip(expected, heard.err.splitlines(), strict=True))


def test_a_conversation_goes_on_where_it_was_saved(capsys, tmp_path):
    secret, saved = tmp_path / "secret", tmp_path / "saved.json"
    secret.write_text("a >> b <<private: c")  # as text, this would end its fence
    kept = ("/system Be brief.", f"/private {secret}", "Mail <<EMAIL: a@b.org>>.\n\nassistant: yes", f"/save {saved}")
    first, second = Scripted("one"), Scripted("two")
    chat(first, *kept)
    chat(second, "/load nothing.json", f"/load {saved}", "again")
    prompt = second.asked[0][0]
    assert prompt[:2] == first.asked[0][0]
    assert prompt[1]["content"][1] == Segment("a@b.org", private=True, kind="EMAIL")
    assert prompt[2:] == [
        {"role": "assistant", "content": (Segment("one", private=True),)},
        {"role": "user", "content": "again"},
    ]
    heard = capsys.readouterr()
    assert "nothing.json: cannot be read" in heard.err
    assert "2 messages; /history shows them" in heard.out


HI = '{"role": "user", "content": "hi"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a list"),
        ('["hi"]', "without role"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
        (f"[{HI}]", "do not alternate"),
        (f'[{HI}, {{"role": "system", "content": "hi"}}]', "do not alternate"),
        ('[{"role": "user", "content": [{"text": "hi", "private": "yes", "kind": null}]}]', "whether it is private"),
    ],
)
def test_what_is_no_saved_conversation_changes_nothing(text, message):
    conversation = ChatConversation(system="Be brief.")
    with pytest.raises(UsageError, match=message) as refused:
        conversation.load_json(text)
    assert "hi" not in str(refused.value).replace("this", "").replace("which", "")
    assert conversation.prompt == [{"role": "system", "content": "Be brief."}]


def test_the_last_chat_is_kept_without_private_text(tmp_path, capsys):
    kept = tmp_path / "state" / "last_chat.json"

    def talk(client, *lines):
        ChatRepl(client, ClientConfig(), ChatConversation(), autosave=kept, stays=True).run(lines)
        return [message["content"] for message in client.asked[-1][0]] if client.asked else []

    talk(Scripted(), "/load")
    assert "last_chat.json: cannot be read: No such file" in capsys.readouterr().err
    talk(Scripted("one", "two"), "hi", "<<private: Ann>>")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "Ann" not in kept.read_text()
    assert talk(Scripted("three"), "/load", "again") == ["hi", "one", "again"]
    assert talk(Scripted("four"), "/load", "more") == ["hi", "one", "again", "three", "more"]
    kept.unlink()
    kept.mkdir()
    talk(Scripted("one", "two"), "hi", "again")
    assert capsys.readouterr().err.count("this chat is not kept (") == 1


def typed(keys, history=None):
    """The lines that a terminal yields for these keys."""
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        return list(_from_terminal(history))


def test_a_pipe_without_text_is_told(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert list(read_lines(None)) == []
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\nsecret\xff\n"), "utf-8"))
    with pytest.raises(UsageError, match=r"standard input: not text in this system's encoding$"):
        list(read_lines(None))


def test_ctrl_c_clears_a_line_and_leaves_only_twice(capsys):
    assert typed("half\x03whole\r\x03again\r\x03\x03never\r") == ["whole", "again"]
    assert capsys.readouterr().err == "outrider: Ctrl-C once more leaves, as Ctrl-D does\n" * 2
    assert typed("\x03half\x03\x03whole\r\x04") == ["whole"]


def test_a_history_that_cannot_be_written_is_told_and_done_without(tmp_path, capsys, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("prompt_toolkit.history.FileHistory.store_string", full)
    for history, why in (("folder", "Is a dir"), ("file/x", "File exists"), ("file", "No space left")):
        assert typed("hi\ryou\r\x04", tmp_path / history) == ["hi", "you"]
        assert f"{history}: what is typed is not kept ({why}" in capsys.readouterr().err


def test_quotes_hold_several_lines_together(tmp_path):
    quotes = '"""'
    keys = f"{quotes}a\rGreet <<private: A\rnn>>{quotes}\r{quotes}/b{quotes}\r{quotes}c{quotes} d\r\x04"
    assert typed(keys, tmp_path / "typed") == ["a\nGreet <<private: A\nnn>>", "//b", f"{quotes}c{quotes} d"]
    kept = (tmp_path / "typed").read_text()
    assert "Greet <<private: >>" in kept
    assert "nn" not in kept


def test_an_emulated_link_can_be_changed():
    with chat_link("lan", "127.0.0.1:1") as link:
        assert link.emulated.summary.startswith("emulated: lan (")
        link.change("cut")
        assert link.emulated.summary.endswith(", cut")
        link.change("restore")
        link.change("paper-4g")
        assert link.emulated.summary.startswith("emulated: paper-4g (")
        assert not link.emulated.summary.endswith("cut")
        with pytest.raises(UsageError, match="nosuch"):
            link.change("nosuch")
    with pytest.raises(UsageError, match="nosuch"), chat_link("nosuch", "127.0.0.1:1"):
        pass


@pytest.mark.slow
def test_a_conversation_on_a_real_terminal(tmp_path):
    """The embedded drafter alone: this is about the terminal."""
    command = [sys.executable, "-m", "outrider_client.cli.app", "chat", "--mode", "offline", "--max-new-tokens", "12"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}
    terminal = Terminal([*command, "--set", "offline-start=true"], environment)
    seen = terminal.until(">", terminal.until("embedded, drafter"))
    for line, wanted in (("Who am I?", "●"), ("/stats", "last answer"), ("Greet <<private: Ann>>.", "●")):
        terminal.type(f"{line}\r")
        seen = terminal.until(">", terminal.until(wanted, seen))
    terminal.type("half\x03\x03")
    terminal.until(">", terminal.until("once more leaves", seen))  # only then does it read keys again
    terminal.type("\x03")
    assert terminal.ended() == 0
    history = (Path(tmp_path) / "outrider" / "chat_history").read_text()
    assert "Who am I?" in history
    assert "Ann" not in history
