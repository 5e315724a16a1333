"""What a request allows the target to write, applied to logits: a JSON schema, penalties, biases for single tokens.

The same on the server, which chooses by it, and on a client, which cuts its drafts and writes offline by it. Logits of
a row are changed by the answer up to that row alone, whatever was drafted beside it, so that acceptance stays exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.contracts.schema_compiler import SchemaCompiler
from outrider_drafters.contracts.schema_grammar import MAX_MASK_S, NO_TOKENIZER, bad, next_mask, too_slow
from outrider_proto.frames import TokenRules
from outrider_proto.packing import common_prefix_len
from outrider_proto.tree import ROOT, DraftTree

_MOST_BEYOND_S = 0.1  # of processor time that the masks of one answer may take beyond what each of them may
_READ_AT_ONCE = 16  # tokens of an answer between two looks at the clock


class AnswerRules:
    """The rules of one answer. Its grammar follows the answer from call to call, and goes back where that has changed.

    `reads_from`: position of the first token that they look at, which is the prompt's for a repetition penalty.
    `schemas`: None where the tokens are not known. `payer`: whom compiled schemas belong to.

    This and its methods raise Refusal (BAD_SAMPLING) for a schema that cannot be followed.
    """

    def __init__(self, rules: TokenRules, schemas: SchemaCompiler | None, payer: str = "") -> None:
        self.answer_from, self.reads_from = rules.answer_from, rules.reads_from
        self._rules = rules
        self._in_text, self._in_answer = _Counts(0), _Counts(self.answer_from - self.reads_from)
        self._grammar = None
        if rules.json_schema:
            if schemas is None:
                raise bad(NO_TOKENIZER)
            self._grammar = _Grammar(schemas, rules.json_schema, payer)

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

    # What a mask takes in place cannot be bounded, and most of what it may take shows only behind some text. So what
    # is slow is counted: after a tenth of a second, the answer ends, and the schema is refused from then on.
    def __init__(self, schemas: SchemaCompiler, schema: str, payer: str) -> None:
        self._matcher = schemas.compile(schema, payer).matcher.deep_copy()
        self._eos = schemas.eos_token_ids
        self._read: list[int] = []
        self._beyond_s = 0.0
        self._refuse, self._forget = partial(schemas.refuse, schema, payer), partial(schemas.forget, schema, payer)

    def next_tokens(self, answer: Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
        """Return which tokens [vocab] may come next; an answer that has left the schema, unverified, can only end."""
        if not self._follow(answer):
            return np.isin(np.arange(vocab_size), self._eos)
        with self._timed():
            mask = next_mask(self._matcher, vocab_size)
        return np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)

    def allowed(self, answer: Sequence[int], tree: DraftTree) -> list[int]:
        if not self._follow(answer):
            return []
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            children.setdefault(parent, []).append(node)
        with self._timed():
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
        self._read = list(answer[:same])
        while rest := list(answer[len(self._read) : len(self._read) + _READ_AT_ONCE]):
            with self._timed():
                num_read = self._matcher.try_consume_tokens(rest)
            self._read += rest[:num_read]
            if num_read < len(rest):
                return False
        return True

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Raise Refusal where what is done here was too slow, or has used up what the library may take."""
        began = time.thread_time()
        yield
        self._beyond_s += max(time.thread_time() - began - MAX_MASK_S, 0.0)
        if self._beyond_s > _MOST_BEYOND_S:
            self._refuse(too_slow())
            raise too_slow()
        if self._matcher.is_error():
            self._forget()  # others that are copied from the same would fail, too
            raise bad(f"json_schema: {self._matcher.get_error().splitlines()[0]}")
