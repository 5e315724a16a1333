"""What a request allows the target to write, applied to logits: a JSON schema, penalties, biases for single tokens.

The same on the server, which chooses by it, and on a client, which cuts its drafts and writes offline by it. Logits of
a row are changed by the answer up to that row alone, whatever was drafted beside it, so that acceptance stays exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.control_names import renamed, secret_names
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import TokenRules
from outrider_proto.packing import common_prefix_len
from outrider_proto.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Of the keywords of JSON Schema: those that hold a schema, several in order, and several by name.
_SCHEMAS = frozenset({"items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_COMBINED = frozenset({"anyOf", "oneOf", "$ref"})  # beside properties
_KEPT = 32  # compiled schemas
_WHITESPACE = r"(\n[ \t]{0,16}| )"  # between the parts of a JSON text. With any, small models write blanks for ever
_NO_TOKENIZER = "json_schema: the target has no tokenizer.json, by which its tokens could be checked"


class SchemaCompiler:
    """Compiles JSON schemas for the tokenizer in a target's directory. From any thread."""

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._file = directory / "tokenizer.json"
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._compiled = lru_cache(_KEPT)(self._compile)
        self._tokenizer = lru_cache(1)(self._load)

    def grammar(self, schema: str) -> _Grammar:
        """Return the grammar of one answer of this schema. Raises Refusal (BAD_SAMPLING)."""
        return _Grammar(self._compiled(schema).deep_copy(), self._eos_token_ids)

    def _load(self) -> LLTokenizer:
        from llguidance import LLTokenizer  # takes a while, and most answers are free

        if not self._file.is_file():
            raise _bad(_NO_TOKENIZER)
        try:
            # Else a text of the schema that spells a special token would be that token, which may end the answer.
            described = read_json(self._file)
            special = secret_names(token["content"] for token in described["added_tokens"] if token["special"])
            return LLTokenizer(renamed(described, special), n_vocab=self._vocab_size, eos_token=self._eos_token_ids)
        except Exception as error:  # the library names no exceptions
            raise _bad(f"json_schema: the tokens of this target cannot be checked ({error})") from error

    def _compile(self, schema: str) -> LLMatcher:
        from llguidance import LLMatcher

        try:
            given = json.loads(schema)
            text = json.dumps(given if _combines(given) else _closed(given))
            grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _WHITESPACE})
        except ValueError as error:
            raise _bad(f"json_schema: cannot be read ({error})") from error
        except RecursionError:
            raise _bad("json_schema: cannot be read (it is nested too deep)") from None
        matcher = LLMatcher(self._tokenizer(), grammar, log_level=0)
        if matcher.is_error():
            raise _bad(f"json_schema: {matcher.get_error().splitlines()[0]}")
        return matcher


def _combines(given: Any) -> bool:  # Any: whatever JSON holds
    """Return whether an object may have to follow several schemas, of which each names a part of its properties."""
    if isinstance(given, list):
        return any(map(_combines, given))
    if not isinstance(given, dict):
        return False
    return (
        "allOf" in given or ("properties" in given and not _COMBINED.isdisjoint(given)) or _combines([*given.values()])
    )


def _closed(schema: Any) -> Any:  # Any: whatever JSON holds
    """Return a schema whose objects have just the properties it names, as other servers take it: models invent more."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _SCHEMAS & schema.keys():
        closed[name] = _closed(schema[name])
    for name in _LISTS_OF_SCHEMAS & schema.keys():
        if isinstance(schema[name], list):
            closed[name] = [_closed(each) for each in schema[name]]
    for name in _NAMED_SCHEMAS & schema.keys():
        if isinstance(schema[name], dict):
            closed[name] = {key: _closed(each) for key, each in schema[name].items()}
    if "properties" in schema and not _OTHERS & schema.keys():
        closed["additionalProperties"] = False
    return closed


class AnswerRules:
    """The rules of one answer. Its grammar follows the answer from call to call, and goes back where that has changed.

    `reads_from`: position of the first token that they look at, which is the prompt's for a repetition penalty.
    `schemas`: None where the tokens are not known. Raises Refusal (BAD_SAMPLING) for a schema that cannot be followed.
    """

    def __init__(self, rules: TokenRules, schemas: SchemaCompiler | None) -> None:
        self.answer_from, self.reads_from = rules.answer_from, rules.reads_from
        self._rules = rules
        self._in_text, self._in_answer = _Counts(0), _Counts(self.answer_from - self.reads_from)
        self._grammar = None
        if rules.json_schema:
            if schemas is None:
                raise _bad(_NO_TOKENIZER)
            self._grammar = schemas.grammar(rules.json_schema)

    def applied(self, logits: Tensor, text: Sequence[int], path: Sequence[int] = ()) -> Tensor:
        """Return the logits [1, vocab] of the token that follows `text`, the tokens from `reads_from` on, and `path`.

        The rows of a pass give the same `text`, which is not changed: it is read once.
        """
        if (penalty := self._rules.repetition_penalty) != 1.0:
            seen = torch.from_numpy(self._in_text.of(text, path, logits.shape[1]) > 0).to(logits.device)
            logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        return logits + torch.from_numpy(self._biases(text, path, logits.shape[1])).to(logits)

    def _biases(self, text: Sequence[int], path: Sequence[int], vocab_size: int) -> NDArray[np.float32]:
        rules = self._rules
        biases = np.zeros(vocab_size, dtype=np.float32)
        for token, bias in rules.logit_bias:
            biases[token] += bias
        if rules.frequency_penalty or rules.presence_penalty:
            counts = self._in_answer.of(text, path, vocab_size)
            biases -= rules.frequency_penalty * counts + rules.presence_penalty * (counts > 0)
        if self._grammar is not None:
            answer = [*text[self.answer_from - self.reads_from :], *path]
            biases[~self._grammar.next_tokens(answer, vocab_size)] = -np.inf
        return biases

    def allowed(self, answer: Sequence[int], tree: DraftTree) -> list[int]:
        """Return the nodes behind the answer so far that may come true, in order."""
        return list(range(len(tree))) if self._grammar is None else self._grammar.allowed(answer, tree)


class _Counts:
    """How often a text has each token, from its token number `first` on; what has changed since is counted alone."""

    # Counted anew for each row of each pass, a long text would hold up all other sessions.
    def __init__(self, first: int) -> None:
        self._first = first
        self._text: Sequence[int] = ()
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)

    def of(self, text: Sequence[int], path: Sequence[int], vocab_size: int) -> NDArray[np.int64]:
        """Return the counts [vocab] of the text with the path behind it."""
        if not len(self._counts):
            self._counts = np.zeros(vocab_size, np.int64)
        if text is not self._text:
            same = max(common_prefix_len(self._text, text), self._first)
            np.subtract.at(self._counts, list(self._text[same:]), 1)
            np.add.at(self._counts, list(text[same:]), 1)
            self._text = text
        counts = self._counts
        if path:
            counts = counts.copy()
            np.add.at(counts, list(path), 1)
        return counts


class _Grammar:
    """A matcher, and the tokens of an answer that it has read."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos = list(eos_token_ids)
        self._read: list[int] = []

    def next_tokens(self, answer: Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
        """Return which tokens [vocab] may come next; an answer that has left the schema, unverified, can only end."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        if not self._follow(answer):
            return np.isin(np.arange(vocab_size), self._eos)
        mask = allocate_token_bitmask(1, vocab_size)
        fill_next_token_bitmask(self._matcher, mask, 0)
        return np.unpackbits(mask.view(np.uint8)[0], count=vocab_size, bitorder="little").view(np.bool_)

    def allowed(self, answer: Sequence[int], tree: DraftTree) -> list[int]:
        if not self._follow(answer):
            return []
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(node)
        return sorted(self._below(ROOT, tree, children))

    def _below(self, node: int, tree: DraftTree, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
        """Yield the allowed nodes below one that the matcher stands behind."""
        for child in children.get(node, ()):
            token = tree.tokens[child]
            # The end is not read: a matcher does not go back behind it.
            if token in self._eos:
                if self._matcher.is_accepting():
                    yield child
            # Asked first: a matcher that has read a wrong token is of no use any more.
            elif self._matcher.validate_tokens([token]):
                yield child
                self._matcher.consume_token(token)
                yield from self._below(child, tree, children)
                self._matcher.rollback(1)

    def _follow(self, answer: Sequence[int]) -> bool:
        """Read the answer, from where it differs; return whether all of it is allowed."""
        same = common_prefix_len(self._read, answer)
        self._matcher.rollback(len(self._read) - same)
        num_read = self._matcher.try_consume_tokens(list(answer[same:]))
        self._read = list(answer[: same + num_read])
        return len(self._read) == len(answer) and not self._matcher.is_error()


def _bad(message: str) -> Refusal:
    return Refusal(Reason.BAD_SAMPLING, message)
