"""The configuration file: precedence, named servers, and mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider_client.cli.options import OPTIONS

FILE = """
mode = "stream"
max-new-tokens = 7
temperature = 0.5
in_flight = 3
opening = false
server = "home"

[servers.home]
address = "home.example.org:7"
temperature = 0.25
ca = "ca.pem"

[servers.box]
address = "box.local"
key-file = "~/key"
tls = true
"""


@pytest.fixture
def outrider(tmp_path, monkeypatch, command_line):
    """Run a command with a configuration file of this text; returns exit code, standard output and standard error."""
    file = tmp_path / "outrider.toml"
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    for name in ("OUTRIDER_SERVER", "OUTRIDER_KEY", "OUTRIDER_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(text: str, *arguments: str):
        file.write_text(text)
        code, *heard = command_line(*arguments)
        return code, *(each.replace(str(tmp_path), "HERE") for each in heard)

    return run


def values(shown: str) -> set[str]:
    return {line for line in shown.splitlines() if " = " in line}


def test_the_file_comes_before_defaults_and_its_server_before_it(outrider):
    code, out, err = outrider(FILE, "config")
    assert (code, err) == (0, "")
    assert out.startswith("HERE/outrider.toml\n  server home: home.example.org:7\n  server box: box.local\n")
    assert values(out) == {
        "server = home.example.org:7  ([servers.home])",
        "mode = stream  (file)",
        "max-new-tokens = 7  (file)",
        "temperature = 0.25  ([servers.home])",
        "in-flight = 3  (file)",
        "opening = False  (file)",
        "ca = HERE/ca.pem  ([servers.home])",
    }


def test_the_command_line_comes_before_the_environment_and_both_before_the_file(outrider, monkeypatch):
    monkeypatch.setenv("OUTRIDER_SERVER", "box")
    monkeypatch.setenv("OUTRIDER_KEY", "secret")
    monkeypatch.setenv("HOME", "/home/ann")
    _, out, _ = outrider(FILE, "config", "--set", "mode=offline", "--set", "opening=true")
    assert {
        "server = box.local  (environment)",
        "mode = offline  (command line)",
        "opening = True  (command line)",
        "temperature = 0.5  (file)",
        "key-file = /home/ann/key  ([servers.box])",
        "tls = True  ([servers.box])",
    } <= values(out)
    monkeypatch.setenv("OUTRIDER_KEY_FILE", "other")
    _, out, _ = outrider(FILE, "config", "--server", "home")
    key_file = f"key-file = {Path('other').absolute()}  (environment)"
    assert {"server = home.example.org:7  (command line)", key_file} <= values(out)
    monkeypatch.delenv("OUTRIDER_KEY_FILE")
    _, out, _ = outrider(FILE, "config", "--server", "elsewhere:1")
    assert {"server = elsewhere:1  (command line)", "temperature = 0.5  (file)"} <= values(out)
    assert "key = not shown  (environment)" in values(out)
    assert "secret" not in out


def test_sources_that_may_be_names_are_paths_where_they_exist(outrider, tmp_path):
    (tmp_path / "heads").mkdir()
    text = 'drafter = ["lookup", "heads,copy=3", "./nowhere"]\ntarget = "smollm2"\n'
    _, out, _ = outrider(text, "config")
    assert values(out) == {
        "drafter = ['lookup', 'HERE/heads,copy=3', 'HERE/nowhere']  (file)",
        "target = smollm2  (file)",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature = -1", "temperature=-1.0: need 0"),
        ('temperature = "0.5"', 'temperature="0.5": input should be a valid number'),
        ("max_new_tokens = 0", "max_new_tokens=0: need a whole number"),
        ('mode = "fast"', "mode=\"fast\": input should be 'auto', 'stop-and-wait'"),
        ("max_tokns = 1", "max_tokns: no such option; did you mean max-new-tokens?"),
        ("in-flight = 2\nin_flight = 2", "in_flight: stands there twice"),
        ('client-cert = "a.pem"', "client-cert and client-key go together"),
        ('keywords = "~nobody-of-that-name/k.toml"\ndrafter = ["lookup", "lookup"]', "keywords "),
        ("servers = 1", "servers: need tables, [servers.NAME]"),
        ("[servers.home]\ntls = true", '[servers.home] needs address = "HOST:PORT"'),
        ('[servers.home]\naddress = "a:1"\nserver = "b"', "[servers.home] server: its address"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(outrider, text, message):
    code, out, err = outrider(text, "generate", "hi")
    said = [line for line in err.splitlines() if "is the built-in one" not in line]
    assert (code, out, len(said)) == (2, "", 1)
    assert said[0].startswith(f"outrider: HERE/outrider.toml: {message}")


def test_the_default_file_may_be_missing_and_a_named_one_may_not(outrider, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CONFIG", str(tmp_path / "none.toml"))
    code, _, err = outrider("", "describe")
    assert (code, err) == (2, "outrider: HERE/none.toml: cannot be read: No such file or directory\n")
    monkeypatch.delenv("OUTRIDER_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    default = tmp_path / "config" / "outrider" / "config.toml"
    hint = 'there is no such file yet; a line such as server = "HOST:PORT" in it sets that option'
    assert outrider("", "config") == (0, f"HERE/config/outrider/config.toml: {hint}\n", "")
    default.parent.mkdir(parents=True)
    default.write_text("seed = 3")
    assert "seed = 3  (file)" in outrider("", "config")[1]


def test_every_option_that_is_a_path_is_relative_to_the_file(outrider):
    paths = [each.name for each in OPTIONS if each.type == Path | None]
    assert len(paths) == 5
    _, out, _ = outrider("".join(f'{name} = "a"\n' for name in paths if name != "keywords"), "config")
    assert values(out) == {f"{name} = HERE/a  (file)" for name in paths if name != "keywords"}


def test_a_mistyped_setting_gets_the_nearest_one(outrider):
    code, _, err = outrider("", "generate", "hi", "--set", "min_probabilty=0.1")
    assert (code, err) == (2, "outrider: min_probabilty: no such option; did you mean min-probability?\n")
    assert outrider("", "generate", "hi", "--set", "threads=many")[2].startswith('outrider: threads="many": ')
    code, out, _ = outrider("", "generate", "--set", "list")
    assert code == 0
    assert "breadth: Nodes of the draft tree that are expanded per level. Default: the drafter's own, else 4.\n" in out
