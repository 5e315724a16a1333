"""Scores: what counts as a right answer, and what generated code may not do."""

import pytest

from outrider_lab.corpus import generate
from outrider_lab.corpus.check import score, score_by_family
from outrider_lab.corpus.sample import CorpusSample, Entities, Exact, HiddenTests, Number
from outrider_lab.corpus.sandbox import SandboxJob, run_jobs

CASES = (("[1, 2]", "3"), ("[]", "0"))


def job(source):
    return SandboxJob(source, "f", CASES)


GOOD = job("def f(x):\n    return sum(x)")
BAD_FUNCTIONS = {
    "wrong answer": "def f(x):\n    return 4",
    "other type": "def f(x):\n    return float(sum(x))",
    "syntax error": "def f(x:",
    "other name": "def g(x):\n    return sum(x)",
    "import": "import os\ndef f(x):\n    os._exit(0)",
    "import inside": "def f(x):\n    import socket\n    return 3",
    "open": "def f(x):\n    open('/etc/passwd')\n    return sum(x)",
    "dunder": "def f(x):\n    return ().__class__.__bases__[0].__subclasses__()",
    "print": "def f(x):\n    print('1')\n    return 4",
    "exit": "def f(x):\n    raise SystemExit(0)",
    "recursion": "def f(x):\n    return f(x)",
    "endless loop": "def f(x):\n    while True:\n        pass",
    "endless loop that catches": """def f(x):
    while True:
        try:
            f(x)
        except Exception:
            pass""",
    "endless loop that catches all": """def f(x):
    while True:
        try:
            pass
        except:
            pass""",
    "endless loop in finally": """def f(x):
    try:
        return 3
    finally:
        while True:
            try:
                while True:
                    pass
            except:
                pass""",
    "memory": "def f(x):\n    y = [0] * 10**10\n    return 3",
    "memory in pieces": "def f(x):\n    y = [0]\n    while True:\n        y = y + y",
    "huge power": "def f(x):\n    return 9 ** 9 ** 9",
}


@pytest.mark.parametrize("source", BAD_FUNCTIONS.values(), ids=BAD_FUNCTIONS)
def test_a_bad_function_fails_alone(source):
    assert run_jobs([GOOD, job(source), GOOD]) == [True, False, True]


def sample(check):
    return CorpusSample("any", (), "", "key", check)


@pytest.mark.parametrize(
    ("check", "text", "right"),
    [
        (Number(12), "Start: 3.\nAnswer: 12", True),
        (Number(12), "Answer: 1\nAnswer: 12", True),
        (Number(12), "Answer: 123", False),
        (Number(-2), "Answer: -2", True),
        (Number(12), "12", False),
        (Entities(("Lena", "Oslo")), "Lena lives in Oslo.", True),
        (Entities(("Lena", "Oslo")), "Lena lives in Rome.", False),
        (Entities(("Ana",)), "Anastasia lives in Rome.", False),
        (Exact("a - b"), " a - b\n", True),
        (Exact("a - b"), "a, b", False),
        (HiddenTests("f", CASES), "```python\ndef f(x):\n    return sum(x)\n```", True),
        (HiddenTests("f", CASES), "def f(x):\n    return sum(x)", True),
        (HiddenTests("f", CASES), "", False),
    ],
)
def test_scores(check, text, right):
    assert score(sample(check), text) is right


def test_scores_by_family():
    samples = [*generate("code", "test", 1, 3), *generate("math", "test", 1, 4)]
    texts = [s.answer for s in samples[:-1]] + ["no idea"]
    scores = score_by_family(samples, texts)
    assert {family: (s.passed, s.total) for family, s in scores.items()} == {"code": (3, 3), "math": (3, 4)}
    assert scores["math"].rate == 0.75
