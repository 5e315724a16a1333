"""The command line against a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from outrider_client.cli import app as cli
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target


@pytest.fixture
def outrider(models, server, command_line):
    """Run the command about the server with these arguments; returns exit code, standard output and standard error."""

    def run(*arguments: str, options: bool = True, address: str = server.address, typed: str = ""):
        pair = ["--target", str(models[0]), "--drafter", str(models[1])] if options else []
        patience = [] if arguments[0] == "describe" else ["--set", "link-floor-ms=5000"]  # this machine may be busy
        return command_line(*arguments, "--server", address, *pair, *patience, typed=typed)

    return run


@pytest.fixture(scope="module")
def plain(models):
    """Text and tokens of the target alone."""
    target = Target.load(str(models[0]))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(models[0])

    def answer(prompt: str | list[int], num_tokens: int) -> tuple[str, list[int]]:
        ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        tokens = plain_greedy(target, ids, num_tokens)
        return tokenizer.decode(tokens, skip_special_tokens=True), tokens

    return answer


@pytest.mark.parametrize(
    ("arguments", "typed", "prompt"),
    [
        (["hello"], "", "u:hello;a:"),
        (["-", "--raw"], "hello", "hello"),
        (["--raw"], "hello", "hello"),
        (["-", "--file", "FILE", "--system", "be"], "hello", "s:be;u:hello\n\nmore;a:"),
    ],
)
def test_text_on_a_pipe(outrider, plain, tmp_path, arguments, typed, prompt):
    (tmp_path / "file").write_text("more")
    given = [str(tmp_path / "file") if each == "FILE" else each for each in arguments]
    code, out, err = outrider("generate", *given, "--max-new-tokens", "20", typed=typed)
    assert (code, err) == (0, "outrider: the answer is cut after 20 tokens (--max-new-tokens)\n")
    assert out.removesuffix("\n") == plain(prompt, 20)[0].removesuffix("\n")


def test_an_answer_follows_the_schema_of_a_file(outrider, tmp_path):
    (tmp_path / "schema.json").write_text('{"enum": [["hello", 1]]}')
    code, out, _ = outrider("generate", "hello", "--json-schema", str(tmp_path / "schema.json"))
    assert code == 0
    assert json.loads(out.partition("#")[0]) == ["hello", 1]  # which ends a text in this language


@pytest.mark.parametrize("mode", ["stop-and-wait", "stream"])
def test_json(outrider, plain, mode):
    code, out, _ = outrider("generate", "--prompt-ids", "1,2,3", "--json", "--max-new-tokens", "20", "--mode", mode)
    assert code == 0
    objects = [json.loads(line) for line in out.splitlines()]
    assert {"committed", "link_changed", "stats", "finished"} <= {o["event"] for o in objects}
    answer = objects[-1]
    assert answer["event"] == "answer"
    assert answer["token_ids"] == plain([1, 2, 3], 20)[1]
    assert set(answer["origins"]) <= {"accepted", "bonus"}
    told = [o["request"] for o in objects if o["event"] == "cycle"]
    assert told[0]["context"] == [1, 2]
    assert len([request for request in told if "context" in request]) == len({request["seq"] for request in told})


def test_offline_without_a_drafter_copies_or_says_that_it_cannot(outrider, models):
    bare = ("--target", str(models[0]), "--drafter", "none", "--mode", "offline", "--max-new-tokens", "3")
    code, out, _ = outrider("generate", "--raw", "one two one ", *bare, options=False, address="127.0.0.1:1")
    assert (code, out) == (0, "two\n")
    code, out, err = outrider("generate", "--raw", "abcd", *bare, options=False, address="127.0.0.1:1")
    assert (code, out) == (2, "")
    assert "no drafter on this device writes sensible text without the target" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate"], 2, "standard input is empty: give PROMPT or --prompt-ids"),
        (["generate", "hi", "--file", "/nowhere"], 2, "file=/nowhere: cannot be read: No such file"),
        (["generate", "hi", "--raw", "--system", "be"], 2, "system: --raw and"),
        (["generate", "--prompt-ids", "1,x"], 2, "prompt-ids='1,x'"),
        (["generate", "hi", "--set", "breadth=0"], 2, "breadth=0"),
        (["generate", "hi", "--mode", "warp"], 2, "warp"),
        (["generate", "hi", "--breadth", "4"], 2, "No such option: --breadth (Possible options: --set breadth=VALUE)"),
        (["chat", "--max-tokens", "4"], 2, "No such option: --max-tokens (Possible options: --max-new-tokens)"),
        (["generate", "hi", "--drafter", "/nowhere"], 2, "/nowhere"),
        (["generate", "hi", "--set", "draft-vocab=7"], 2, "draft_vocab=7: it has no draft_vocab.json"),
        (["generate", "hi", "--set", "route=entropy"], 2, "there is only one head"),
        (["generate", "hi", "--drafter", "a", "--drafter", "b", "--set", "route=keywords"], 2, "give both or neither"),
        (["generate", "--prompt-ids", ",".join(["1"] * 5000)], 3, "context is"),
    ],
)
def test_mistakes_are_one_clear_line(outrider, arguments, code, message):
    options = "--drafter" not in arguments
    got, out, err = outrider(*arguments, options=options)
    assert got == code
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_the_server_may_be_named_once_for_all_commands(server, monkeypatch, command_line):
    def told(address, *arguments):
        monkeypatch.setenv("OUTRIDER_SERVER", address)
        code, out, _ = command_line(*arguments, "--json", typed="hi\n")
        return code, [json.loads(line) for line in out.splitlines()]

    code, (description,) = told(server.address, "describe")
    assert (code, description["vocab_size"]) == (0, 256)
    for arguments in (["describe"], ["pull"], ["generate", "hi"], ["chat"]):
        code, (*_, error) = told("127.0.0.1:1", *arguments)
        assert (code, error["event"], error["code"]) == (4, "error", "link")
        assert error["message"].startswith("cannot reach 127.0.0.1:1: no server listens there")


def test_the_shell_completes_commands_and_modes():
    def completed(words):
        environment = {"_OUTRIDER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'outrider'; from outrider_client.cli.app import main; main()",
        ]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("outrider ge") == ["generate"]
    assert "stop-and-wait" in completed("outrider generate --mode ")


def test_nobody_is_asked_to_pull_where_nobody_types_or_the_model_was_named(outrider, server, monkeypatch):
    refusal = f"they must be the same: `outrider pull {server.address}` fetches what fits"
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("somebody was asked"))
    for is_there, options in ((False, []), (True, ["--json"]), (True, ["--target", "embedded"])):
        monkeypatch.setattr("outrider_client.cli.pull.is_interactive", lambda there=is_there: there)
        code, out, err = outrider("generate", "hi", *options, options=False)
        assert (code, refusal in out + err) == (3, True)


def test_who_does_not_want_to_pull_is_refused(outrider, server, monkeypatch):
    monkeypatch.setattr("outrider_client.cli.pull.is_interactive", lambda: True)
    code, out, err = outrider("generate", "hi", options=False, typed="n\n")
    assert (code, "Pull it now (" in out + err, f"`outrider pull {server.address}`" in err) == (3, True, True)


def test_standard_output_that_cannot_be_written():
    command = f"{sys.executable} -m outrider_client.cli.app"
    full = "outrider: standard output: cannot be written (No space left on device)\n"
    for arguments, code, said in (
        ("config >/dev/full", 1, full),
        ("config >&-", 0, ""),
        ("config | true; exit ${PIPESTATUS[0]}", 1, ""),
        ("generate hi --mode offline --target embedded --max-new-tokens 3 >/dev/full", 1, full),
    ):
        done = subprocess.run(["bash", "-c", f"{command} {arguments}"], stderr=subprocess.PIPE, text=True, timeout=120)
        cut = done.stderr.replace("outrider: the answer is cut after 3 tokens (--max-new-tokens)\n", "")
        assert (done.returncode, cut) == (code, said)


def test_a_pipe_that_lacks_a_character_gets_the_others(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "latin-1", "XDG_CONFIG_HOME": str(tmp_path / "ключ é")}
    command = [sys.executable, "-m", "outrider_client.cli.app", "config"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert "/???? é/" in done.stdout.decode("latin-1")


def started(models, server, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "outrider_client.cli.app", *arguments, "--json", "--max-new-tokens", "400"]
    command += ["--server", server.address, "--target", str(models[0]), "--drafter", str(models[1])]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)


def until(process: subprocess.Popen[str], event: str) -> dict:
    while (heard := json.loads(process.stdout.readline()))["event"] != event:
        pass
    return heard


def test_ctrl_c_ends_generate(models, server):
    with started(models, server, "generate", "--prompt-ids", "1,2,3") as process:
        until(process, "committed")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""


def test_ctrl_c_ends_an_answer_and_not_the_chat(models, server):
    with started(models, server, "chat", "--mode", "stop-and-wait") as process:
        process.stdin.write("hi\n")
        until(process, "committed")
        process.send_signal(signal.SIGINT)
        process.stdin.write("you\n")
        requests = iter(lambda: until(process, "cycle")["request"], None)
        prompt = next(request for request in requests if not request["tree"]["tokens"])
        assert prompt["base_len"] > 0  # the session goes on
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == "outrider: stopped\n" * 2


def test_the_draft_history_is_kept_shown_and_deleted(outrider, plain, models, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pair = ("--target", str(models[0]), "--drafter", "suffix", "--set", "draft-history=1", "--mode", "stop-and-wait")

    def shown(*arguments: str) -> list[str]:
        result = CliRunner().invoke(cli.app, ["draft-history", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    assert shown() == [f"{tmp_path / 'outrider/draft_history'}: nothing is kept"]
    accepted = []
    for _ in range(2):
        code, out, _ = outrider("generate", "hello", "--max-new-tokens", "30", "--json", *pair, options=False)
        assert code == 0
        finished = json.loads(out.splitlines()[-1])
        accepted.append(finished["statistics"]["mean_acceptance_length"])
    assert accepted[1] > accepted[0]
    (line,) = shown()
    private = ("generate", "hello <<private: you>>", "--privacy", "placeholder", "--max-new-tokens", "30")
    size = [path.stat().st_size for path in (tmp_path / "outrider/draft_history").iterdir()]
    assert line.endswith(f": {sum(size) / 1e3:,.1f} kB")
    assert outrider(*private, *pair, options=False)[0] == 0
    assert [path.stat().st_size for path in (tmp_path / "outrider/draft_history").iterdir()] == size
    assert shown("--clear") == [line, "deleted"]
    assert not list((tmp_path / "outrider/draft_history").iterdir())
    code, _, err = outrider("generate", "hello", "--set", "draft-history=1", "--drafter", "lookup", options=False)
    assert (code, "draft_history_mb=1: the drafter does not draft from earlier text" in err) == (2, True)
