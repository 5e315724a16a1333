"""Operations that code samples are composed of, by the kind of value they work on.

Each operation says how it is asked for, how it is written in Python, and what it computes. The computation is
independent of the written line, so that a reference answer that passes its tests proves something. `{k}` in a phrase or
line stands for a small number named by the prompt, `{c}` for a letter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["numbers", "words", "text", "number"]


@dataclass(frozen=True, slots=True)
class Operation:
    """`phrases[0]` is also the wording of the docstring; `line` is the right side of `result = ...` or `return ...`."""

    key: str
    phrases: tuple[str, ...]
    line: str
    run: Callable[[Any, Any], Any]  # Any: the value's type is the kind's, list or text or number


@dataclass(frozen=True, slots=True)
class OperationSet:
    """The operations on one kind of value: steps keep the kind, an end gives the result."""

    steps: tuple[Operation, ...]
    ends: tuple[Operation, ...]


def op(key: str, phrases: str, line: str, run: Callable[[Any, Any], Any]) -> Operation:  # Any: as above
    """Build an operation from phrases separated by ` | `."""
    return Operation(key, tuple(phrases.split(" | ")), line, run)


_VOWELS = "aeiou"

# Training data depends on the order of these tuples: random.Random draws from them by position.
_NUMBER_LIST_STEPS: tuple[Operation, ...] = (
    op("even", "keep the even numbers | keep only even values", "[x for x in result if x % 2 == 0]",
        lambda r, k: [x for x in r if not x % 2]),
    op("odd", "keep the odd numbers | keep only odd values", "[x for x in result if x % 2 == 1]",
        lambda r, k: [x for x in r if x % 2]),
    op("positive", "keep the positive numbers | keep numbers above zero", "[x for x in result if x > 0]",
        lambda r, k: list(filter(lambda x: x > 0, r))),
    op("negative", "keep the negative numbers | keep numbers below zero", "[x for x in result if x < 0]",
        lambda r, k: list(filter(lambda x: x < 0, r))),
    op("nonzero", "remove the zeros | drop every zero", "[x for x in result if x != 0]",
        lambda r, k: list(filter(None, r))),
    op("above", "keep numbers greater than {k} | keep values above {k}", "[x for x in result if x > {k}]",
        lambda r, k: list(filter(k.__lt__, r))),
    op("below", "keep numbers less than {k} | keep values below {k}", "[x for x in result if x < {k}]",
        lambda r, k: list(filter(k.__gt__, r))),
    op("multiple", "keep the multiples of {k} | keep numbers divisible by {k}", "[x for x in result if x % {k} == 0]",
        lambda r, k: [x for x in r if x // k * k == x]),
    op("nonmultiple", "remove the multiples of {k} | drop numbers divisible by {k}",
        "[x for x in result if x % {k} != 0]", lambda r, k: [x for x in r if x // k * k != x]),
    op("double", "double each number | multiply each number by two", "[x * 2 for x in result]",
        lambda r, k: [x + x for x in r]),
    op("square", "square each number | raise each number to the power of two", "[x * x for x in result]",
        lambda r, k: [x**2 for x in r]),
    op("add", "add {k} to each number | increase each number by {k}", "[x + {k} for x in result]",
        lambda r, k: list(map(k.__add__, r))),
    op("subtract", "subtract {k} from each number | decrease each number by {k}", "[x - {k} for x in result]",
        lambda r, k: [-(k - x) for x in r]),
    op("multiply", "multiply each number by {k} | scale each number by {k}", "[x * {k} for x in result]",
        lambda r, k: list(map(k.__mul__, r))),
    op("negate", "negate each number | flip the sign of each number", "[-x for x in result]",
        lambda r, k: [0 - x for x in r]),
    op("abs", "take the absolute value of each number | make each number absolute", "[abs(x) for x in result]",
        lambda r, k: [max(x, -x) for x in r]),
    op("remainder", "replace each number by its remainder modulo {k} | take each number modulo {k}",
        "[x % {k} for x in result]", lambda r, k: [x - x // k * k for x in r]),
    op("halve", "halve each number rounding down | divide each number by two rounding down",
        "[x // 2 for x in result]", lambda r, k: [x >> 1 for x in r]),
    op("cap", "cap each number at {k} | limit each number to at most {k}", "[min(x, {k}) for x in result]",
        lambda r, k: [k if x > k else x for x in r]),
    op("ascending", "sort in ascending order | sort from smallest to largest", "sorted(result)",
        lambda r, k: sorted(r, reverse=True)[::-1]),
    op("descending", "sort in descending order | sort from largest to smallest", "sorted(result, reverse=True)",
        lambda r, k: sorted(r)[::-1]),
    op("reverse", "reverse the order | turn the order around", "result[::-1]", lambda r, k: list(reversed(r))),
    op("unique", "remove duplicates | drop repeated values", "list(dict.fromkeys(result))",
        lambda r, k: [x for i, x in enumerate(r) if x not in r[:i]]),
    op("first", "take the first {k} items | keep only the first {k} items", "result[:{k}]",
        lambda r, k: [x for i, x in enumerate(r) if i < k]),
    op("last", "take the last {k} items | keep only the last {k} items", "result[-{k}:]",
        lambda r, k: [x for i, x in enumerate(r) if i >= len(r) - k]),
    op("skip", "skip the first {k} items | drop the first {k} items", "result[{k}:]",
        lambda r, k: [x for i, x in enumerate(r) if i >= k]),
    op("alternate", "take every second item | keep every other item", "result[::2]",
        lambda r, k: [x for i, x in enumerate(r) if not i % 2]),
)  # fmt: skip
_NUMBER_LIST_ENDS: tuple[Operation, ...] = (
    op("list", "return the list | return the resulting list", "result", lambda r, k: r),
    op("sum", "return the sum | return the total", "sum(result)", lambda r, k: sum(r)),
    op("count", "return the count | return how many there are", "len(result)", lambda r, k: len(r)),
    op("max", "return the largest or zero | return the maximum or zero", "max(result, default=0)",
        lambda r, k: max(r) if r else 0),
    op("min", "return the smallest or zero | return the minimum or zero", "min(result, default=0)",
        lambda r, k: min(r) if r else 0),
    op("distinct", "return the number of distinct values | return how many different values there are",
        "len(set(result))", lambda r, k: len(set(r))),
    op("any", "return whether any are left | return whether the list is not empty", "len(result) > 0",
        lambda r, k: bool(r)),
    op("text", "return them joined by commas | return them as text with commas", "\",\".join(str(x) for x in result)",
        lambda r, k: ",".join(map(str, r))),
)  # fmt: skip
_WORD_LIST_STEPS: tuple[Operation, ...] = (
    op("upper", "convert each word to upper case | make each word upper case", "[w.upper() for w in result]",
        lambda r, k: list(map(str.upper, r))),
    op("lower", "convert each word to lower case | make each word lower case", "[w.lower() for w in result]",
        lambda r, k: list(map(str.lower, r))),
    op("capital", "capitalize each word | start each word with a capital", "[w.capitalize() for w in result]",
        lambda r, k: [w[:1].upper() + w[1:].lower() for w in r]),
    op("longer", "keep words longer than {k} letters | keep words with more than {k} letters",
        "[w for w in result if len(w) > {k}]", lambda r, k: list(filter(lambda w: len(w) > k, r))),
    op("shorter", "keep words shorter than {k} letters | keep words with fewer than {k} letters",
        "[w for w in result if len(w) < {k}]", lambda r, k: list(filter(lambda w: len(w) < k, r))),
    op("begin", "keep words starting with '{c}' | keep words that begin with '{c}'",
        "[w for w in result if w.startswith('{c}')]", lambda r, c: [w for w in r if w[:1] == c]),
    op("end", "keep words ending with '{c}' | keep words that end in '{c}'",
        "[w for w in result if w.endswith('{c}')]", lambda r, c: [w for w in r if w[-1:] == c]),
    op("contain", "keep words containing '{c}' | keep words with the letter '{c}'",
        "[w for w in result if '{c}' in w]", lambda r, c: [w for w in r if w.count(c)]),
    op("without", "remove words containing '{c}' | drop words with the letter '{c}'",
        "[w for w in result if '{c}' not in w]", lambda r, c: [w for w in r if not w.count(c)]),
    op("mirror", "reverse each word | write each word backwards", "[w[::-1] for w in result]",
        lambda r, k: ["".join(reversed(w)) for w in r]),
    op("initial", "take the first letter of each word | shorten each word to its first letter",
        "[w[:1] for w in result]", lambda r, k: ["".join(list(w)[:1]) for w in r]),
    op("prefix", "take the first {k} letters of each word | shorten each word to {k} letters",
        "[w[:{k}] for w in result]", lambda r, k: ["".join(list(w)[:k]) for w in r]),
    op("nonempty", "remove empty words | drop empty strings", "[w for w in result if w]",
        lambda r, k: list(filter(len, r))),
    op("sort", "sort in alphabetical order | sort alphabetically", "sorted(result)",
        lambda r, k: sorted(r, reverse=True)[::-1]),
    op("size", "sort by length | order by length", "sorted(result, key=len)", lambda r, k: sorted(r, key=len)),
    op("reverse", "reverse the order | turn the order around", "result[::-1]", lambda r, k: list(reversed(r))),
    op("unique", "remove duplicates | drop repeated words", "list(dict.fromkeys(result))",
        lambda r, k: [x for i, x in enumerate(r) if x not in r[:i]]),
    op("first", "take the first {k} items | keep only the first {k} items", "result[:{k}]",
        lambda r, k: [x for i, x in enumerate(r) if i < k]),
    op("skip", "skip the first {k} items | drop the first {k} items", "result[{k}:]",
        lambda r, k: [x for i, x in enumerate(r) if i >= k]),
)  # fmt: skip
_WORD_LIST_ENDS: tuple[Operation, ...] = (
    op("list", "return the list | return the resulting list", "result", lambda r, k: r),
    op("count", "return the count | return how many there are", "len(result)", lambda r, k: len(r)),
    op("spaces", "return them joined by spaces | return one text with spaces between", "\" \".join(result)",
        lambda r, k: " ".join(r)),
    op("dashes", "return them joined by dashes | return one text with dashes between", "\"-\".join(result)",
        lambda r, k: "-".join(r)),
    op("lengths", "return the length of each word | return a list of the lengths", "[len(w) for w in result]",
        lambda r, k: list(map(len, r))),
    op("total", "return the total length | return the number of letters in all", "sum(len(w) for w in result)",
        lambda r, k: len("".join(r))),
    op("longest", "return the longest word | return the word with the most letters",
        "max(result, key=len, default=\"\")", lambda r, k: sorted(r, key=lambda w: -len(w))[0] if r else ""),
)  # fmt: skip
_TEXT_STEPS: tuple[Operation, ...] = (
    op("upper", "convert the text to upper case | make the text upper case", "result.upper()",
        lambda r, k: "".join(map(str.upper, r))),
    op("lower", "convert the text to lower case | make the text lower case", "result.lower()",
        lambda r, k: "".join(map(str.lower, r))),
    op("strip", "strip spaces from both ends | trim the text", "result.strip()", lambda r, k: r.lstrip().rstrip()),
    op("nospace", "remove all spaces | delete every space", "result.replace(\" \", \"\")",
        lambda r, k: "".join(x for x in r if x != " ")),
    op("swap", "replace spaces with dashes | turn each space into a dash", "result.replace(\" \", \"-\")",
        lambda r, k: "-".join(r.split(" "))),
    op("reverse", "reverse the text | write the text backwards", "result[::-1]",
        lambda r, k: "".join(reversed(r))),
    op("novowel", "remove the vowels | delete every vowel", "\"\".join(c for c in result if c not in \"aeiou\")",
        lambda r, k: "".join(c for c in r if _VOWELS.find(c) < 0)),
    op("letters", "keep only letters | remove everything but letters",
        "\"\".join(c for c in result if c.isalpha())", lambda r, k: "".join(filter(str.isalpha, r))),
    op("delete", "remove every '{c}' | delete the letter '{c}'", "result.replace('{c}', \"\")",
        lambda r, c: "".join(r.split(c))),
    op("first", "take the first {k} characters | keep only the first {k} characters", "result[:{k}]",
        lambda r, k: "".join(list(r)[:k])),
    op("skip", "skip the first {k} characters | drop the first {k} characters", "result[{k}:]",
        lambda r, k: "".join(list(r)[k:])),
    op("repeat", "repeat the text {k} times | write the text {k} times", "result * {k}",
        lambda r, k: "".join([r] * k)),
)  # fmt: skip
_TEXT_ENDS: tuple[Operation, ...] = (
    op("text", "return the text | return the resulting text", "result", lambda r, k: r),
    op("length", "return the length | return the number of characters", "len(result)", lambda r, k: len(list(r))),
    op("vowels", "return the number of vowels | return how many vowels there are",
        "sum(c in \"aeiou\" for c in result)", lambda r, k: len([c for c in r if _VOWELS.find(c) >= 0])),
    op("words", "return the list of words | return the words as a list", "result.split()",
        lambda r, k: [w for w in r.replace("\t", " ").split(" ") if w]),
    op("number", "return the number of words | return how many words there are", "len(result.split())",
        lambda r, k: len([w for w in r.split(" ") if w])),
    op("letter", "return how often '{c}' occurs | return the count of '{c}'", "result.count('{c}')",
        lambda r, c: len([x for x in r if x == c])),
)  # fmt: skip
_NUMBER_STEPS: tuple[Operation, ...] = (
    op("add", "add {k} | increase it by {k}", "result + {k}", lambda r, k: sum((r, k))),
    op("subtract", "subtract {k} | decrease it by {k}", "result - {k}", lambda r, k: -(k - r)),
    op("multiply", "multiply by {k} | scale it by {k}", "result * {k}", lambda r, k: k * r),
    op("double", "double it | multiply it by two", "result * 2", lambda r, k: r + r),
    op("square", "square it | raise it to the power of two", "result * result", lambda r, k: r**2),
    op("negate", "negate it | flip its sign", "-result", lambda r, k: 0 - r),
    op("abs", "take the absolute value | make it absolute", "abs(result)", lambda r, k: max(r, -r)),
    op("halve", "halve it rounding down | divide it by two rounding down", "result // 2", lambda r, k: r >> 1),
    op("divide", "divide by {k} rounding down | take the whole part of dividing by {k}", "result // {k}",
        lambda r, k: (r - r % k) // k),
    op("remainder", "take the remainder modulo {k} | take it modulo {k}", "result % {k}",
        lambda r, k: r - r // k * k),
    op("cap", "cap it at {k} | limit it to at most {k}", "min(result, {k})", lambda r, k: k if r > k else r),
    op("floor", "raise it to at least {k} | make it no smaller than {k}", "max(result, {k})",
        lambda r, k: k if r < k else r),
)  # fmt: skip
_NUMBER_ENDS: tuple[Operation, ...] = (
    op("value", "return the number | return the resulting number", "result", lambda r, k: r),
    op("even", "return whether it is even | return True if it is even", "result % 2 == 0", lambda r, k: not r % 2),
    op("positive", "return whether it is positive | return True if it is above zero", "result > 0",
        lambda r, k: max(r, 0) != 0),
    op("text", "return it as text | return it as a string", "str(result)", lambda r, k: f"{r}"),
    op("digits", "return the sum of its digits | return its digit sum", "sum(int(d) for d in str(abs(result)))",
        lambda r, k: sum(map(int, f"{max(r, -r)}"))),
    op("width", "return how many digits it has | return its number of digits", "len(str(abs(result)))",
        lambda r, k: len(f"{max(r, -r)}")),
)  # fmt: skip

OPERATIONS: dict[Kind, OperationSet] = {
    "numbers": OperationSet(_NUMBER_LIST_STEPS, _NUMBER_LIST_ENDS),
    "words": OperationSet(_WORD_LIST_STEPS, _WORD_LIST_ENDS),
    "text": OperationSet(_TEXT_STEPS, _TEXT_ENDS),
    "number": OperationSet(_NUMBER_STEPS, _NUMBER_ENDS),
}
