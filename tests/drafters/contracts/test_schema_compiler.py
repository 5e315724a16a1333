"""Schemas of strangers: tried in a child, refused where they cost too much, compiled for one payer at a time."""

import asyncio
import json
from threading import Event

import pytest
import torch
from llguidance import LLTokenizer

from outrider_drafters.contracts import schema_compiler
from outrider_drafters.contracts.schema_compiler import SchemaCompiler, SchemaQueue
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.trials.trial import BOUNDS, Bounds
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import TokenRules

VOCAB, EOS = 2048, 1


HOSTILE = json.dumps({"allOf": [{"type": "string", "pattern": f".*a{i}.*b{i}.*"} for i in range(16)]})
GOOD = {
    "any": {},
    "a list of many": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6, "maxItems": 2 * 10**6},
    "a tree": {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
    "a large enum": {"enum": [f"city number {i}" for i in range(5000)]},
    "many properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
    "formats": {"type": "object", "properties": {f: {"type": "string", "format": f} for f in ("date", "uri", "email")}},
    "bounds": {"type": "object", "properties": {"n": {"type": "integer", "minimum": -7, "maximum": 10**9}}},
}


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setitem(BOUNDS, "grammar", Bounds(0.5, 256))
    compiler = SchemaCompiler(target_dir(), VOCAB, [EOS])
    yield compiler
    compiler.stop()


def no_trial(*args, **kwargs):
    raise AssertionError("tried again")


def test_a_schema_that_costs_too_much_is_remembered(compiler, monkeypatch):
    with pytest.raises(Refusal, match="json_schema: ") as refused:
        compiler.compile(HOSTILE, "one")
    assert refused.value.reason is Reason.BAD_SAMPLING
    assert compiler.find(HOSTILE, "another") is None
    assert compiler.compile('{"type": "string"}', "one")
    monkeypatch.setattr(compiler._trial, "run", no_trial)
    with pytest.raises(Refusal, match="json_schema: "):
        compiler.find(HOSTILE, "one")


@pytest.mark.parametrize("name", GOOD)
def test_schemas_of_apps_pass(compiler, monkeypatch, name):
    monkeypatch.setattr(compiler._trial, "_bounds", Bounds(2.0, 256))
    schema = json.dumps(GOOD[name])
    made = compiler.compile(schema, "one")
    assert compiler.find(schema, "one") is made
    assert compiler.find(schema, "another") is None, "its time would tell what others use"


def test_a_tokenizer_as_large_as_gemmas_is_read(tmp_path):
    (tmp_path / "tokenizer.json").write_text((target_dir() / "tokenizer.json").read_text() + " " * 34_000_000)
    assert SchemaCompiler(tmp_path, VOCAB, [EOS]).compile("{}")


def test_what_is_kept_is_bounded_in_bytes_and_whoever_holds_most_loses(compiler, monkeypatch):
    monkeypatch.setattr(schema_compiler, "_MAX_BYTES", 3 * schema_compiler._LEAST_BYTES)
    schemas = [json.dumps({"const": number}) for number in range(6)]
    compiler.compile(schemas[0], "honest")
    for schema in schemas[1:]:
        compiler.compile(schema, "greedy")
    assert compiler.find(schemas[0], "honest")
    assert [bool(compiler.find(schema, "greedy")) for schema in schemas[1:]] == [False, False, False, True, True]


def test_what_is_slow_only_behind_some_text_ends_the_answer_there(compiler):
    """No walk finds it: the text is the client's own, who says where its answer begins."""
    text = "y" * 60
    rules = TokenRules(json.dumps({"type": "string", "pattern": f"^([a-z]{{0,59}}!|{text}(a{{1000}}){{1000}})$"}))
    tokenizer = LLTokenizer(str(target_dir() / "tokenizer.json"), n_vocab=VOCAB, eos_token=EOS)
    answer = tokenizer.tokenize_str('"' + text)
    started = AnswerRules(rules, compiler)
    assert torch.isfinite(started.applied(torch.zeros(1, VOCAB), answer[:1])).any()

    def follow():
        for end in ("", "a"):  # at once for its time, else as what a mask may take is used up
            started.applied(torch.zeros(1, VOCAB), [*answer, *tokenizer.tokenize_str(end)])

    with pytest.raises(Refusal, match="json_schema: ") as refused:
        follow()
    assert refused.value.reason is Reason.BAD_SAMPLING


async def test_payers_take_turns(compiler, monkeypatch):
    order, begun = [], Event()

    def compile_schema(schema, payer, is_wanted):
        begun.wait()  # none ends before all have come
        order.append(schema)

    monkeypatch.setattr(compiler, "compile", compile_schema)
    queue = SchemaQueue(compiler)
    jobs = [("1", "busy"), ("2", "busy"), ("3", "busy"), ("4", "other"), ("5", "third")]
    waiting = [asyncio.create_task(queue.compile(*job)) for job in jobs]
    await asyncio.sleep(0)
    begun.set()
    await asyncio.gather(*waiting)
    assert order == ["1", "2", "4", "5", "3"]


async def test_a_trial_that_nobody_waits_for_is_ended(compiler, monkeypatch):
    monkeypatch.setattr(compiler._trial, "_bounds", Bounds(600.0, 4096))
    queue = SchemaQueue(compiler)
    waiting = [asyncio.create_task(queue.compile(HOSTILE, payer)) for payer in ("one", "another")]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    assert [type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)] == [asyncio.CancelledError] * 2
    await queue.compile('{"type": "string"}', "one")
    assert compiler.find(HOSTILE, "another") is None, "it was not refused, either"
