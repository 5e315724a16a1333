"""Prompts of installed packages' functions: HumanEval's form, licenses, what is kept apart, the same for a seed."""

import gzip
import json
from importlib.metadata import Distribution, PathDistribution

import pytest

from outrider_lab.corpus.functions import function_prompts, license_of
from outrider_proto.errors import UsageError

BODY = "".join(f"    x{i} = a + {i}\n" for i in range(8)) + "    return x1\n"
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def function(name, doc):
    return f'import os\nimport math\n\ndef {name}(a: int, *, b=math.pi) -> int:\n    """{doc}"""\n{BODY}\n'


def package(root, name, license, text, classifier="") -> Distribution:
    about = root / f"{name}-1.dist-info"
    about.mkdir()
    (root / name).mkdir()
    (root / name / "code.py").write_text(text)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nLicense: {license}\n{classifier}"
    )
    (about / "RECORD").write_text(f"{name}/code.py,,\n{name}/tests/test_code.py,,\n")
    return PathDistribution(about)


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "HumanEval.jsonl.gz"
    problem = {"entry_point": "Add_Up", "prompt": f"def Add_Up():\n    '{WORDS}'\n", "canonical_solution": ""}
    path.write_bytes(gzip.compress(json.dumps(problem).encode()))
    return path


def test_heads_without_bodies_of_permissive_packages_alone(tmp_path, problems):
    doc = "Return what\n    the words say.\n\n    Parameters\n    ----------\n    a : int\n\n    >>> f(1)\n    2\n    "
    short = 'def tiny(a):\n    """Return one more than a."""\n    return a\n'
    packages = [
        package(tmp_path, "good", "MIT", function("code", doc) + short),
        package(tmp_path, "bad", "GPL-3.0", function("other", "Return what the others say.")),
        package(tmp_path, "both", "", function("third", doc), "Classifier: License :: OSI Approved :: BSD License"),
    ]
    prompts, counts = function_prompts(0, problems, packages)
    assert [license_of(one) for one in packages] == ["MIT", None, "BSD License"]
    assert counts["functions"] == len(prompts) == 2
    good = next(prompt for prompt in prompts if prompt.package == "good")
    assert good.prompt.removeprefix("Implement the following Python function.\n\n```python\n").removesuffix("```") == (
        'import math\n\n\ndef code(a: int, *, b=math.pi) -> int:\n    """Return what\n    the words say.\n'
        '    >>> f(1)\n    2\n    """\n'
    )


def test_what_humaneval_has_is_left_out_and_counted(tmp_path, problems):
    text = function("add_up", "Return something else than that.") + function("new", f"Say {WORDS} now.")
    text += function("kept", "Return what is kept apart.") * 2
    prompts, counts = function_prompts(0, problems, [package(tmp_path, "some", "MIT", text)])
    assert ["def kept" in prompt.prompt for prompt in prompts] == [True]
    assert list(counts.values()) == [4, 1, 1, 1]
    problems.with_suffix("").write_text("{}\n")
    with pytest.raises(UsageError, match="need HumanEval's problems"):
        function_prompts(0, problems.with_suffix(""), [])


def test_a_package_is_held_out_whole_and_a_seed_gives_the_same(tmp_path, problems):
    names = [f"package{i}" for i in range(30)]
    texts = {name: "".join(function(f"{name}_{i}", f"Return {i} of {name}.") for i in range(4)) for name in names}
    packages = [package(tmp_path, name, "BSD", text) for name, text in texts.items()]
    first, again, other = (function_prompts(seed, problems, packages)[0] for seed in (5, 5, 2))
    assert first == again
    assert sorted(first, key=str) != sorted(other, key=str)
    sides = {(prompt.package, prompt.held_out) for prompt in first}
    assert len(sides) == len(names)
    assert {side for _, side in sides} == {True, False}
    assert {prompt.kind for prompt in first} == {"completion", "chat"}
