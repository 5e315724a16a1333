"""The rules of an answer: every row of a tree as a fresh matcher over its own text has it, and penalties by hand."""

import json
import random

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from outrider_drafters.contracts.schema_compiler import SchemaCompiler
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import TokenRules
from outrider_proto.tree import DraftTree

VOCAB, EOS = 2048, 1
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
TEXT = '{"name": "Bob", "age": 42}'


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(str(target_dir() / "tokenizer.json"), n_vocab=VOCAB, eos_token=EOS)


@pytest.fixture(scope="module")
def schemas() -> SchemaCompiler:
    return SchemaCompiler(target_dir(), VOCAB, [EOS])


def allowed_after(tokenizer: LLTokenizer, tokens: list[int]) -> set[int]:
    grammar = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_pattern": r"(\n[ \t]{0,16}| )"})
    matcher = LLMatcher(tokenizer, grammar)
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    mask = allocate_token_bitmask(1, VOCAB)
    fill_next_token_bitmask(matcher, mask, 0)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")).tolist())


def biases(rules: AnswerRules, answer: list[int], vocab_size: int = VOCAB) -> np.ndarray:
    return rules.applied(torch.zeros(1, vocab_size), answer)[0].numpy()


def allowed_by(biases: np.ndarray) -> set[int]:
    assert set(np.unique(biases)) <= {0.0, -np.inf}
    return set(np.flatnonzero(np.isfinite(biases)).tolist())


def test_every_row_may_go_on_as_its_own_text_may(tokenizer, schemas):
    """Branches that come true, break the schema, go on behind that, or end the text."""
    text = tokenizer.tokenize_str(TEXT)
    rules = AnswerRules(TokenRules(SCHEMA), schemas)
    for held in (0, 3, len(text) - 2, 1):  # back as well
        rest = text[held : held + 4]
        wrong = next(token for token in range(3, VOCAB) if token not in allowed_after(tokenizer, text[:held]))
        tokens = (*rest, wrong, *rest[:1], EOS)
        parents = (*range(-1, len(rest) - 1), -1, len(rest), len(rest) - 1)
        tree = DraftTree(tokens, parents)
        for stop in range(held, held + len(rest) + 1):
            assert allowed_by(biases(rules, text[:stop])) == allowed_after(tokenizer, text[:stop])
        is_over = held + len(rest) == len(text)
        assert rules.allowed(text[:held], tree) == [*range(len(rest)), *([len(tree) - 1] if is_over else [])]
    assert allowed_after(tokenizer, text) == {EOS}


def test_an_answer_outside_its_schema_can_only_end(tokenizer, schemas):
    rules = AnswerRules(TokenRules(SCHEMA), schemas)
    wrong = [*tokenizer.tokenize_str('{"name"'), 70]
    assert allowed_by(biases(rules, wrong)) == {EOS}
    assert rules.allowed(wrong, DraftTree((9,), (-1,))) == []
    assert allowed_by(biases(rules, wrong[:2])) == allowed_after(tokenizer, wrong[:2])


@pytest.mark.parametrize(
    ("schema", "open_to_more"),
    [
        ({"properties": {"a": {"type": "integer"}}}, False),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": True}, True),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}, True),
        ({"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]}, False),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]}, True),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": {"type": "integer"}}}}}, False),
        ({"properties": {"a": {"type": "integer"}}, "anyOf": [{"properties": {"b": {"type": "integer"}}}]}, True),
        ({}, True),
    ],
)
def test_an_object_has_no_properties_but_those_that_its_schema_names(tokenizer, schemas, schema, open_to_more):
    for text, is_allowed in [('{"a": 1}', True), ('{"a": 1, "b": 2}', open_to_more)]:
        rules = AnswerRules(TokenRules(json.dumps({"type": "object"} | schema)), schemas)
        tokens = tokenizer.tokenize_str(text)
        assert (rules.allowed([], DraftTree.chain(tokens)) == list(range(len(tokens)))) == is_allowed


def test_penalties_count_the_answer():
    rules = AnswerRules(
        TokenRules(frequency_penalty=0.5, presence_penalty=-1.0, logit_bias=((3, 2.0), (9, -7.5))), None
    )
    expected = np.zeros(10)
    expected[[3, 9]] = 2.0, -7.5
    expected[[5, 6]] = 1.0 - 2 * 0.5, 1.0 - 0.5
    assert np.array_equal(biases(rules, [5, 6, 5], 10), expected)
    expected[3] += 1.0 - 0.5
    assert np.array_equal(biases(rules, [5, 6, 5, 3], 10), expected)
    assert rules.allowed([5], DraftTree((5, 3, 3), (-1, 0, 1))) == [0, 1, 2]


def test_what_has_been_counted_follows_a_text_that_grows_changes_and_shrinks():
    """In passes of several rows, of which each has a path of its own."""
    choice, vocab_size, prompt = random.Random(4), 12, [3, 4, 3]
    given = TokenRules(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.25, answer_from=len(prompt))
    rules, text = AnswerRules(given, None), list(prompt)
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1))
    for _ in range(60):
        text = [
            *text[: choice.randint(len(prompt), len(text))],
            *choice.choices(range(vocab_size), k=choice.randint(0, 9)),
        ]
        for path in ([], choice.choices(range(vocab_size), k=3), [text[-1]]):
            whole = [*text, *path]
            expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([whole]), logits)
            for token in range(vocab_size):
                count = whole[len(prompt) :].count(token)
                expected[0, token] -= 0.5 * count + 0.25 * (count > 0)
            torch.testing.assert_close(rules.applied(logits, text, path), expected)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "json_schema: cannot be read"),
        ('{"type": "foo"}', "json_schema: Invalid type: foo"),
        ('{"not": {"type": "string"}}', "json_schema: Unimplemented keys"),
    ],
)
def test_schemas_that_cannot_be_followed_are_refused(schemas, schema, message):
    with pytest.raises(Refusal, match=message) as refused:
        AnswerRules(TokenRules(schema), schemas)
    assert refused.value.reason is Reason.BAD_SAMPLING


def test_without_its_tokenizer_no_schema_can_be_followed(tmp_path):
    for schemas in (None, SchemaCompiler(tmp_path, VOCAB, [EOS])):
        with pytest.raises(Refusal, match=r"no tokenizer\.json"):
            AnswerRules(TokenRules(SCHEMA), schemas)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refusal, match="the tokens of this target cannot be checked"):
        AnswerRules(TokenRules(SCHEMA), SchemaCompiler(tmp_path, VOCAB, [EOS]))
