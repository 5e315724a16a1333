"""The grammar of a JSON schema, as it is compiled: first in a trial's child, which walks along it, and then in place.

Without torch, which a child takes seconds to import.
"""

from __future__ import annotations

import ctypes
import json
import time
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.control_names import renamed, secret_names
from outrider_proto.errors import Reason, Refusal
from outrider_proto.files import MAX_TOKENIZER_BYTES

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NO_TOKENIZER = "json_schema: the target has no tokenizer.json, by which its tokens could be checked"
MAX_MASK_S = 0.02  # of processor time, for the tokens that may come next

# Of the keywords of JSON Schema: those that hold a schema, several in order, and several by name.
_SCHEMAS = frozenset({"items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_OTHERS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_COMBINED = frozenset({"anyOf", "oneOf", "$ref"})  # beside properties
_WHITESPACE = r"(\n[ \t]{0,16}| )"  # between the parts of a JSON text. With any, small models write blanks for ever

# Of one grammar in place: what its first mask and those after it may take (a second of fuel is some 10^6), and its
# memory. The library's own bounds are for schemas of one's own.
_FIRST_FUEL, _FUEL, _MAX_STATES = 300_000, 100_000, 50_000
_CLOSERS = ('"', '",', '":', '"}', "}", "]", ",", ":", "0", '""', "{}", "[]")  # by which a walk comes to the next part
_WALKS = (64, 24)  # tokens: of a walk that closes what it can, and of one at random


def compiled(schema: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the begin of an answer. Raises Refusal (BAD_SAMPLING)."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        given = json.loads(schema)
        text = json.dumps(given if _combines(given) else _closed(given))
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _WHITESPACE})
    except ValueError as error:
        raise bad(f"json_schema: cannot be read ({error})") from error
    except RecursionError:
        raise bad("json_schema: cannot be read (it is nested too deep)") from None
    limits = LLParserLimits(
        initial_lexer_fuel=_FIRST_FUEL, step_lexer_fuel=_FUEL, max_lexer_states=_MAX_STATES, verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise bad(f"json_schema: {matcher.get_error().splitlines()[0]}")
    return matcher


@lru_cache(1)
def load_tokenizer(file: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """Return the tokens of a target. Raises Refusal (BAD_SAMPLING)."""
    from llguidance import LLTokenizer  # takes a while, and most answers are free

    path = Path(file)
    if not path.is_file():
        raise bad(NO_TOKENIZER)
    try:
        # Else a text of the schema that spells a special token would be that token, which may end the answer.
        described = read_json(path, MAX_TOKENIZER_BYTES)
        special = secret_names(token["content"] for token in described["added_tokens"] if token["special"])
        return LLTokenizer(renamed(described, special), n_vocab=vocab_size, eos_token=[*eos_token_ids])
    except Exception as error:  # the library names no exceptions
        raise bad(f"json_schema: the tokens of this target cannot be checked ({error})") from error


def set_up(file: str, vocab_size: int, eos_token_ids: list[int]) -> None:
    """Make a child ready for its first schema."""
    compiled("{}", load_tokenizer(file, vocab_size, (*eos_token_ids,)))


def try_schema(file: str, vocab_size: int, eos_token_ids: list[int], schema: str) -> int:
    """Compile a schema and walk along it, in a child; return the bytes that it holds.

    Raises Refusal (BAD_SAMPLING), also for one whose masks take too long.
    """
    tokenizer = load_tokenizer(file, vocab_size, (*eos_token_ids,))
    before = _heap_bytes()
    matcher = compiled(schema, tokenizer)
    closers = [ids[0] for ids in map(tokenizer.tokenize_str, _CLOSERS) if len(ids) == 1]
    for length, first in zip(_WALKS, (closers, []), strict=True):
        _walk(matcher.deep_copy(), schema, tokenizer, length, first)
    return max(_heap_bytes() - before, 0)


def _walk(matcher: LLMatcher, schema: str, tokenizer: LLTokenizer, length: int, first: list[int]) -> None:
    choice, tokens = Random(0), list[int]()
    for _ in range(length):
        took, mask = _step(matcher, tokens[-1:], tokenizer.vocab_size)
        # Once may be chance: a matcher that has not made the mask yet makes it again.
        if took > MAX_MASK_S and min(_made_again(schema, tokenizer, tokens) for _ in range(2)) > MAX_MASK_S:
            raise too_slow()
        if matcher.is_error():
            raise bad(f"json_schema: {matcher.get_error().splitlines()[0]}")
        if (token := _chosen(mask, choice, first, tokenizer.eos_tokens)) is None:
            return
        tokens.append(token)


def _step(matcher: LLMatcher, read: list[int], vocab_size: int) -> tuple[float, NDArray[np.int32]]:
    """Return the seconds that a token and the mask behind it take, and the mask [words]."""
    began = time.process_time()
    matcher.consume_tokens(read)
    mask = next_mask(matcher, vocab_size)
    return time.process_time() - began, mask


def _made_again(schema: str, tokenizer: LLTokenizer, tokens: list[int]) -> float:
    matcher = compiled(schema, tokenizer)
    matcher.consume_tokens(tokens[:-1])
    return _step(matcher, tokens[-1:], tokenizer.vocab_size)[0]


def _chosen(mask: NDArray[np.int32], choice: Random, first: list[int], ends: list[int]) -> int | None:
    """Return one of the tokens that a mask allows, of `first` if it can be; None if only the end is left."""
    if closing := [token for token in first if mask[token >> 5] >> (token & 31) & 1]:
        return choice.choice(closing)
    bits = mask.copy()
    for token in ends:
        bits[token >> 5] &= ~np.int32(np.uint32(1 << (token & 31)).view(np.int32))
    if not len(words := np.flatnonzero(bits)):
        return None
    word = int(choice.choice(words))
    return word * 32 + choice.choice([bit for bit in range(32) if int(bits[word]) >> bit & 1])


def next_mask(matcher: LLMatcher, vocab_size: int) -> NDArray[np.int32]:
    """Return which tokens may come next, as bits [words]."""
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

    masks: NDArray[np.int32] = allocate_token_bitmask(1, vocab_size)
    fill_next_token_bitmask(matcher, masks, 0)
    return masks.reshape(-1)


class _Heap(ctypes.Structure):
    """What mallinfo2 returns: `hblkhd` bytes mapped one by one, and `uordblks` of the heap in use."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _heap_bytes() -> int:
    """Return what this process has allocated and not freed; 0 where the system's library does not tell."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except (AttributeError, TypeError):  # only glibc has it, and Windows no library of this name
        return 0
    count.restype = _Heap
    heap = count()
    return int(heap.hblkhd + heap.uordblks)


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


def too_slow() -> Refusal:
    return bad(f"json_schema: takes more than {MAX_MASK_S * 1000:g} ms for a token: make it simpler")


def bad(message: str) -> Refusal:
    return Refusal(Reason.BAD_SAMPLING, message)
