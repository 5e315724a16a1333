"""A private value stands in every text of random requests, in every spelling: none of them leaves for the server."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus, unquote

import pytest
from in_thread import InThread
from transformers import AutoModelForCausalLM

from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_client.privacy import placeholders
from outrider_models.core.embedded import target_dir
from outrider_proto.frames import Decode, Draft
from outrider_server.engine.target import Target
from outrider_server.rpc import service
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ..canaries import Relay, word

WINDOW = 8  # letters of a canary that are a leak
AROUND = (
    *("{}", "Zoë {}", "{} Müller", 'the "{}"', "{} 😀", "d'{}, née Ünal", "{}@example.org", "a/b\\{}", "& {};"),
    *("C:\\Users\\{}\\x", "%41555{}", "+ + + {}"),
)
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "all of it by number": lambda value: "".join(f"\\u{code:04X}" for code in _utf16(value)),
    "HTML": html.escape,
    "HTML by number": lambda value: "".join(f"&#{ord(char)};" for char in value),
    "HTML by hexadecimal number, twice": lambda value: "".join(f"&amp;#x{ord(char):x};" for char in value),
    "a URL": lambda value: quote(value, safe=""),
    "a form": quote_plus,
    "a URL in a URL": lambda value: quote(quote(value, safe=""), safe=""),
    "composed": lambda value: unicodedata.normalize("NFC", value),
    "decomposed": lambda value: unicodedata.normalize("NFD", value),
    "wrapped": lambda value: value.replace(" ", "\n  "),
    "bytes": lambda value: "".join(f"\\x{byte:02x}" for byte in value.encode()),
    "as a word processor has it": lambda value: (
        value.replace(" ", "\u00a0").replace("'", "\u2019").replace("e", "e\u00ad")
    ),
    "emphasis": lambda value: f"__{value}__",
}
NUM_REQUESTS = 26


def _utf16(text: str) -> Iterator[int]:
    data = text.encode("utf-16-be")
    return (int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))


class Planter:
    """Writes a request of random structure around one value; `places` says what it planted where."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.canary = word(self.generator)
        self.value = self.generator.choice(AROUND).format(self.canary)
        self.places: list[str] = []

    def text(self, place: str) -> str:
        """Some text that has the value in some spelling."""
        spelling = self.generator.choice(list(SPELLINGS))
        self.places.append(f"{place}: {spelling}")
        return f"{word(self.generator, 4)} {SPELLINGS[spelling](self.value)} {word(self.generator, 3)}"

    def request(self) -> tuple[str, dict]:
        path = self.generator.choice(("chat/completions", "chat/completions", "responses", "completions"))
        kind = "EMAIL" if "@" in self.value else "NAME"
        marked = f"Write to <<{kind}: {self.value}>> about it"
        body: dict = {"model": "outrider", "outrider": {"privacy": "placeholder", "fences": True}}
        if path == "completions":
            return path, body | {
                "prompt": f"{self.text('prompt')} {marked}",
                "max_tokens": 2,
                "user": self.text("user"),
            }
        schema = {"type": "object", "properties": {"to": self.schema()}, "title": self.text("title")}
        more = self.generator.choice(("tools", "must", "schema", "none"))
        if path == "responses":
            body |= {"max_output_tokens": 2, "metadata": {"note": self.text("metadata")}, "input": self.items(marked)}
            body["instructions"] = self.text("instructions")
            function = {"type": "function", "name": "send", "description": self.text("tool"), "parameters": schema}
            form = {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}
        else:
            body |= {"max_tokens": 2, "stop": [self.text("stop")[:200]], "messages": self.messages(marked)}
            function = {"name": "send", "description": self.text("tool"), "parameters": schema}
            function = {"type": "function", "function": function}
            form = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
        if more in ("tools", "must"):
            body |= {"tools": [function]} | ({"tool_choice": "required"} if more == "must" else {})
        return path, body | (form if more == "schema" else {})

    def schema(self) -> dict:
        return self.generator.choice(
            (
                {"const": self.text("const")},
                {"enum": [self.text("enum"), "x"]},
                {"type": "string", "description": self.text("description"), "default": self.text("default")},
                {"type": "object", "properties": {self.text("property"): {"type": "string"}}},
            )
        )

    def messages(self, marked: str) -> list[dict]:
        arguments = self.generator.choice((json.dumps({"to": self.value}), json.dumps({"to": self.text("argument")})))
        call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": arguments}}
        turns = [
            {"role": "system", "content": self.text("system")},
            {"role": "user", "content": [{"type": "text", "text": self.text("part")}]},
            {"role": "assistant", "content": self.text("answer"), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": self.text("result")},
        ]
        kept = [turn for turn in turns if self.generator.random() < 0.7]
        return [*kept, {"role": "user", "content": marked}]

    def items(self, marked: str) -> list[dict]:
        items = [
            {"role": "assistant", "content": [{"type": "output_text", "text": self.text("answer")}]},
            {"type": "function_call", "name": "send", "call_id": "1", "arguments": json.dumps({"to": self.value})},
            {"type": "function_call_output", "call_id": "1", "output": self.text("output")},
        ]
        return [*(item for item in items if self.generator.random() < 0.7), {"role": "user", "content": marked}]


def plainly(text: str) -> str:
    """What a text says, read in ways of others than the client's own."""
    for _ in range(3):
        text = re.sub(
            r"\\+(?:u00|x)([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), unquote(html.unescape(text))
        )
    return unicodedata.normalize("NFC", text.replace("\u00ad", "")).casefold()


def holds(text: str, canary: str) -> bool:
    return any(canary[i : i + WINDOW] in text for i in range(len(canary) - WINDOW + 1))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server of the embedded target's first layer, which soon reads a thousand requests, and its client's models."""
    folder = shutil.copytree(target_dir(), tmp_path_factory.mktemp("small") / "target")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.num_hidden_layers = 1
    del model.model.layers[1:]
    model.save_pretrained(folder)
    with InThread(lambda: Server(Verifier(Target.load(str(folder)), []))) as server:
        yield server.address, LocalModels.load(ClientConfig(target=folder, drafter="lookup"))


@pytest.fixture
def arrived(monkeypatch) -> list[object]:
    """Frames as the server has them."""
    frames: list[object] = []
    parse = service._parse
    monkeypatch.setattr(service, "_parse", lambda data: frames.append(frame := parse(data)) or frame)
    return frames


def said(frames: list[object], models) -> str:
    """All text in frames: of tokens, and of schemas."""
    texts, rules = [], []
    for frame in frames:
        if isinstance(frame, Draft | Decode):
            texts.append(models.decode([*frame.context, frame.root]))
            rules.append("" if frame.sampling is None else frame.sampling.rules.json_schema)
    return "\n".join([*texts, *rules])


def leaks(start_gateway, small, arrived, seeds: range) -> tuple[list[str], list[int]]:
    """What has left of each request whose value did, and the status of each."""
    (server, models), found, statuses = small, [], []
    with InThread(lambda: Relay(server)) as relay, start_gateway(relay.address, own=models) as gateway:
        gateway.wait_for_link("online")
        for seed in seeds:
            planter = Planter(seed)
            path, body = planter.request()
            arrived.clear()
            del relay.up[:]
            status = gateway.request("POST", f"/v1/{path}", json.dumps(body).encode()).status
            statuses.append(status)
            sent = said(arrived, models)
            if holds(plainly(sent), planter.canary) or holds(bytes(relay.up).decode("latin-1"), planter.canary):
                found.append(f"{seed} {path} {planter.value!r}: {planter.places}: {sent}")
    return found, statuses


@pytest.mark.parametrize(
    "seeds", [range(NUM_REQUESTS), pytest.param(range(1000, 2000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_spelling_of_a_private_value_leaves(start_gateway, small, arrived, seeds):
    found, statuses = leaks(start_gateway, small, arrived, seeds)
    assert found == []
    assert statuses.count(200) > len(statuses) * 2 / 3
    assert set(statuses) <= {200, 400}


def test_the_search_finds_what_an_open_gate_lets_through(start_gateway, small, arrived, monkeypatch):
    monkeypatch.setattr(placeholders, "without", literally)
    found, _ = leaks(start_gateway, small, arrived, range(NUM_REQUESTS))
    assert len(found) > NUM_REQUESTS / 2


def literally(text, values, *, whole_words):
    """As `without`, of values as they are alone."""
    for each in values:
        text = text.replace(each.value, each.placeholder)
    return text
