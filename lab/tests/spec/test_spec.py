"""`outrider-lab spec` whole on the embedded target: its files, and its figures computed from them once more."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from outrider_client.models.tokenizer import TargetTokenizer
from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_lab.spec import run as spec_run
from outrider_lab.spec.options import SpecOptions
from outrider_lab.spec.plan import assistant_among, drafter_names
from outrider_lab.spec.records import record_name
from outrider_lab.spec.study import SpecStudy
from outrider_lab.spec.summary import Differing
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write a line.", "Write it again."], "reference": []},
    {"question_id": 321, "category": "qa", "turns": ["Who?"]},
    {"question_id": "long", "category": "rag", "turns": ["word " * 2000]},
]
NEW = 5


def spec(*arguments: object) -> dict:
    result = CliRunner().invoke(app, ["spec", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if result.stdout else {}


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("spec")
    (folder / "question.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    spec(*options(folder / "out"))
    return folder / "out"


WAYS = {
    "generate",
    "generate-lookup",
    "generate-assistant",
    "plain",
    "independent",
    "independent-auto",
    "independent-chain",
}


def options(out: Path) -> list[object]:
    asked = ["--questions", out.parent / "question.jsonl", *settings(max_new_tokens=NEW, runs=2), "--out", out]
    return [*asked, "--drafter", "independent", "--set", "tree=own", "--set", "tree=auto", "--set", "tree=chain"]


def test_there_is_a_file_for_each_way_in_spec_bench_s_form(out):
    assert {path.stem for path in out.glob("*.jsonl")} == WAYS
    plain = read(out / "plain.jsonl")
    for way in WAYS:
        answers = read(out / f"{way}.jsonl")
        assert [answer["question_id"] for answer in answers] == [81, 321]
        for answer, its in zip(answers, plain, strict=True):
            assert answer["model_id"] == f"target-{way}"
            for choice, right in zip(answer["choices"], its["choices"], strict=True):
                assert choice["turns"] == right["turns"]
                assert choice["new_tokens"] == right["new_tokens"]
                assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"])
                assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
                assert min(choice["wall_time"]) > 0
    assert [len(answer["choices"]) for answer in plain] == [2, 2]
    assert [len(answer["choices"][0]["turns"]) for answer in plain] == [2, 1]
    assert set(plain[0]["choices"][0]["accept_lengths"]) == {1}
    assert max(read(out / "independent.jsonl")[0]["choices"][0]["accept_lengths"]) > 1


def test_the_summary_is_what_speed_py_computes_from_the_files(out):
    summary = json.loads((out / "summary.json").read_text())
    tokenizer, base = TargetTokenizer(target_dir()), read(out / "generate.jsonl")
    for way, found in summary["ways"].items():
        answers = read(out / f"{way}.jsonl")
        for run, figures in enumerate(found["overall"]["runs"]):
            mine, theirs = ([answer["choices"][run] for answer in some] for some in (answers, base))
            speeds = [sum(one["new_tokens"]) / sum(one["wall_time"]) for one in mine]
            counted = [
                sum(len(tokenizer.encode(turn)) - 1 for turn in one["turns"]) / sum(one["wall_time"]) for one in theirs
            ]
            assert figures["tokens_per_second"] == pytest.approx(fmean(speeds))
            assert figures["speedup"] == pytest.approx(fmean(speeds) / fmean(counted))
            lengths = [length for one in mine for length in one["accept_lengths"]]
            assert figures["mean_accepted_tokens"] == pytest.approx(fmean(lengths))
        assert found["overall"]["mean"]["speedup"] == pytest.approx(
            fmean(run["speedup"] for run in found["overall"]["runs"])
        )
        assert set(found) == {"mt_bench", "qa", "overall"}
    assert {way: one["answers"] for way, one in summary["differing"].items()} == dict.fromkeys(WAYS - {"plain"}, 0)
    assert (
        summary["left_out"] == [line for line in summary["left_out"] if line.startswith("question long, turn 1")] != []
    )
    assert summary["made_by"]["torch_threads"] > 0
    assert spec("--summarize", out)["ways"] == summary["ways"]


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_interrupted(out, tmp_path, monkeypatch):
    (tmp_path / "question.jsonl").write_text((out.parent / "question.jsonl").read_text())
    answered, ask = [], spec_run._ask

    async def ask_some(*arguments: object) -> list:
        if len(answered) == 5:
            raise KeyboardInterrupt
        answered.append(arguments[1])
        return await ask(*arguments)

    monkeypatch.setattr(spec_run, "_ask", ask_some)
    again = tmp_path / "out"
    result = CliRunner().invoke(app, ["spec", *map(str, options(again))])
    assert result.exit_code != 0
    assert "5 rows are kept: the same command goes on" in result.output
    rows = read(again / "summary.json.partial")[1:]
    assert sum(len(answer["choices"]) for file in again.glob("*.jsonl") for answer in read(file)) == len(rows) == 5
    monkeypatch.setattr(spec_run, "_ask", ask)
    other = CliRunner().invoke(app, ["spec", *map(str, options(again)), "--set", "seed=3"])
    assert "seed=3 here, 1 there" in str(other.exception)

    spec(*options(again))
    assert not (again / "summary.json.partial").exists()
    assert {path.stem for path in again.glob("*.jsonl")} == WAYS
    kept = {row["row"]["answer_id"] for row in rows}
    answers = [answer for way in WAYS for answer in read(again / f"{way}.jsonl")]
    assert len(answers) == 2 * len(WAYS)
    last_runs = {row["row"]["answer_id"] for row in rows if row["row"]["run"] == 1}
    assert last_runs <= {answer["answer_id"] for answer in answers}
    assert kept


def test_the_gap_of_logits_is_told_where_an_answer_begins_to_differ(out):
    asked = SpecOptions(
        questions=out.parent / "question.jsonl", out=out, drafter=["independent"], max_new_tokens=NEW, families=("qa",)
    )
    study, rows = SpecStudy(asked), {}
    study.measure_missing(rows, rows.__setitem__, lambda *_: None)
    assert not list(study.failures(study.report(rows)))
    name = record_name(0, 321, "independent")
    (turn,) = rows[name].turns
    wrong = replace(turn, token_ids=(turn.token_ids[0], turn.token_ids[1] + 1, *turn.token_ids[2:]))
    report = study.report(rows | {name: replace(rows[name], turns=(wrong,))})
    assert report.differing["independent"].answers == 1
    assert report.differing["independent"].largest_gap > 0
    assert report.differing["generate-lookup"] == Differing(0, 1)
    (line,) = study.failures(report)
    assert line.startswith("independent: 1 answers (100.0%) differ from those of the plain loop, at logits at most")


def test_ways_of_an_earlier_run_leave_no_files(tmp_path):
    (tmp_path / "question.jsonl").write_text(json.dumps(QUESTIONS[1]))
    asked = ["--questions", tmp_path / "question.jsonl", "--set", "max-new-tokens=2", "--out", tmp_path / "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.jsonl").write_text("")
    spec(*asked, "--drafter", "lookup", "--set", "tree=own")
    spec(*asked, "--drafter", "lookup", "--set", "tree=chain")
    names = {path.stem for path in (tmp_path / "out").glob("*.jsonl")}
    assert names == {"generate", "generate-lookup", "generate-assistant", "plain", "lookup-chain", "mine"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((), "need --questions and --out, or --summarize"),
        (("--set", "tree=bush"), "tree='bush': choose from own, auto, chain, tree"),
        (("--drafter", "/nowhere"), "/nowhere"),
        (("--set", "families=maths"), "families='maths': choose from qa"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(tmp_path, wrong, message):
    (tmp_path / "question.jsonl").write_text(json.dumps(QUESTIONS[1]))
    asked = ["--questions", str(tmp_path / "question.jsonl"), "--out", str(tmp_path / "out")] if wrong else []
    result = CliRunner().invoke(app, ["spec", *asked, *wrong])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_way_never_takes_another_one_s_file(tmp_path):
    (tmp_path / "plain").symlink_to(drafter_dir("moa"))
    (tmp_path / "question.jsonl").write_text(json.dumps(QUESTIONS[1]))
    asked = ["--questions", str(tmp_path / "question.jsonl"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["spec", *asked, "--drafter", str(tmp_path / "plain")])
    assert isinstance(result.exception, UsageError)
    assert "two ways are called plain: give the drafters' directories other names" in str(result.exception)


def test_drafters_are_named_by_their_directories():
    assert drafter_names(["/a/moa,tli=1", "lookup"]) == {"moa,tli=1": "/a/moa,tli=1", "lookup": "lookup"}
    with pytest.raises(UsageError, match="another one is called moa, too"):
        drafter_names(["/a/moa", "/b/moa"])
    assert assistant_among(["lookup", str(drafter_dir("independent"))]) == drafter_dir("independent")
    assert assistant_among(["lookup"]) is None
