"""Chat templates are programs of strangers: they end within bounds, and what they are given stays where it is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from outrider_drafters.readers import chat_template
from outrider_drafters.readers.chat_template import ChatTemplate
from outrider_drafters.trials.trial import Trial
from outrider_proto.errors import UsageError

CHAT = [{"role": "user", "content": "Hello"}]
PLAIN = "{{ messages[0].content }}"
SECRET = "Qwzx Vkpy"


def many(inner: str) -> str:
    return f"{{% for a in range(99999) %}}{inner}{{% endfor %}}"


def test_a_template_that_took_too_much_is_not_tried_at_once_again():
    template, large = ChatTemplate({}), [{"role": "user", "content": "a" * 70_000}]
    slow = (
        "{% if messages[0].content == 'Hello' or messages[0].content | length > 9 %}{{ 'a' * 3000000000 }}{% endif %}"
    )
    with pytest.raises(UsageError):
        template.render(slow, large)  # which may be too long for a good one
    assert template.render(slow, [{"role": "user", "content": "x"}]) == ""
    with pytest.raises(UsageError):
        template.render(slow, CHAT)
    with pytest.raises(UsageError, match="takes more than 256 MiB"):
        template.render(slow, [{"role": "user", "content": "x"}])


WRITES = {
    "controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m | tojson(indent=2) }}{% endfor %}",
    "tools": "{{ tools | tojson }}{{ bos_token }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "nothing for null": "{% for m in messages %}{{ m.name is defined }}{{ m.tool_calls }}{% endfor %}",
    "settings": "{{ enable_thinking }}{{ add_generation_prompt }}{{ strftime_now('%Y') }}{{ namespace(a=1).a }}",
}


@pytest.mark.parametrize("template", WRITES.values(), ids=WRITES)
def test_a_template_writes_what_it_writes_with_transformers(template):
    call = {"id": "1", "function": {"name": "wait", "arguments": {"s": [1, 2.5, None, "\u00e9\U0001f600\ud800"]}}}
    chat = [*CHAT, {"role": "assistant", "content": "b", "tool_calls": [call], "name": None}]
    settings = {"enable_thinking": False, "add_generation_prompt": True}
    plain = [{name: value for name, value in message.items() if value is not None} for message in chat]
    [expected], _ = render_jinja_template([plain], [call], chat_template=template, bos_token="<s>", **settings)
    assert ChatTemplate({"bos_token": "<s>"}).render(template, chat, [call], settings) == expected


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="needs Linux's /proc")
def test_private_text_reaches_the_child_by_its_pipe_alone():
    trial = Trial("template")
    answer = trial.run(f"{chat_template.__name__}:run", PLAIN, [{"role": "user", "content": SECRET}], None, {})
    assert answer == SECRET
    about = Path(f"/proc/{trial._child.pid}")
    assert SECRET.encode() not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
    # Of one byte: 0 would not keep a core from a program that collects them.
    [core] = [line for line in (about / "limits").read_text().splitlines() if line.startswith("Max core file size")]
    assert core.split()[4:6] == ["1", "1"]
    files = {str(file.resolve()) for file in (about / "fd").iterdir()}
    assert {file for file in files if "pipe:" not in file} == {"/dev/null"}
    trial.close()


def test_the_child_imports_nothing_from_the_directory_that_somebody_works_in(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    trial = Trial("template")
    assert trial.run(f"{chat_template.__name__}:run", PLAIN, CHAT, None, {}) == "Hello"
    trial.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_work_that_is_interrupted_gives_its_answer_to_nobody_else():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    template = ChatTemplate({})
    template.render(PLAIN, CHAT)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            template.render(many(many("")) + "theirs", CHAT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert template.render(PLAIN, CHAT) == "Hello"
