"""Studies are resumed after an interruption, and shown again from their reports alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from outrider_bench.cli.app import STUDIES, app
from outrider_bench.core.tables import table
from outrider_bench.harness.runner import run_study
from outrider_bench.harness.study import Study, StudyOptions
from outrider_proto.errors import UsageError


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@dataclass(frozen=True)
class Square:
    number: int
    square: float


@dataclass(frozen=True, kw_only=True)
class SquareOptions(StudyOptions):
    numbers: tuple[int, ...] = (1, 2, 3)
    questions: Path | None = None


class SquareStudy(Study[SquareOptions, Square, dict[str, list[Square]]]):
    """Squares numbers; fails at `bad_luck`."""

    def __init__(self, options, bad_luck=None):
        super().__init__(options)
        self.bad_luck, self.measured = bad_luck, []

    async def run(self, taken, step):
        for number in self.options.numbers:
            if str(number) not in taken:
                if number == self.bad_luck:
                    raise KeyboardInterrupt
                self.measured.append(number)
                yield str(number), Square(number, number**2 / 3)

    def report(self, rows):
        return {"squares": list(rows.values())}

    @staticmethod
    def tables(report):
        return [table("squares", ("number", "square"), [[f"{s.number}", f"{s.square}"] for s in report["squares"]])]

    @staticmethod
    def failures(report):
        return [f"{square.number} is unlucky" for square in report["squares"] if square.number == 13]


def interrupted(path: Path, **options) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run_study("squares", SquareStudy(SquareOptions(json=path, **options), bad_luck=3))
    return path.with_name(f"{path.name}.partial")


def test_rows_of_an_interrupted_run_are_not_measured_again(tmp_path, capsys):
    path = tmp_path / "out" / "report.json"
    partial = interrupted(path)
    assert f"{partial}: 2 rows are kept" in capsys.readouterr().err
    with partial.open("a") as file:
        file.write('{"name": "3", "row": {"num')  # killed in the middle of a line
    study = SquareStudy(SquareOptions(json=path))
    run_study("squares", study)
    assert study.measured == [3]
    report = json.loads(path.read_text())
    assert [square["square"] for square in report["squares"]] == [1 / 3, 4 / 3, 3.0]
    assert report["made_by"]["study"] == "squares"
    assert not partial.exists()


def test_rows_of_other_options_are_refused_in_one_line(tmp_path):
    path, asked = tmp_path / "report.json", tmp_path / "asked.jsonl"
    asked.write_text("a question")
    partial = interrupted(path, questions=asked)
    kept = partial.read_bytes()
    with pytest.raises(UsageError, match=r"numbers=\[1, 2\] here, \[1, 2, 3\] there: give the same options"):
        run_study("squares", SquareStudy(SquareOptions(json=path, questions=asked, numbers=(1, 2))))
    asked.write_text("another one")
    with pytest.raises(UsageError, match="questions="):
        run_study("squares", SquareStudy(SquareOptions(json=path, questions=asked)))
    with pytest.raises(UsageError, match='study="cubes" here, "squares" there'):
        run_study("cubes", SquareStudy(SquareOptions(json=path, questions=asked)))
    assert partial.read_bytes() == kept
    partial.write_text("somebody's own")
    with pytest.raises(UsageError, match="no records of outrider-bench squares: name another file"):
        run_study("squares", SquareStudy(SquareOptions(json=path)))
    assert partial.read_text() == "somebody's own"


def test_what_is_wrong_is_said_and_reported_and_ends_with_1(tmp_path, capsys):
    path = tmp_path / "report.json"
    with pytest.raises(typer.Exit) as caught:
        run_study("squares", SquareStudy(SquareOptions(json=path, numbers=(13,))))
    assert caught.value.exit_code == 1
    assert "13 is unlucky" in capsys.readouterr().err
    assert json.loads(path.read_text())["squares"][0]["number"] == 13


def test_what_cannot_be_shown_is_refused(tmp_path):
    path = tmp_path / "report.json"
    for content, options, said in (
        ("{", (), f"{path}: cannot be read as JSON"),
        ('{"made_by": {"command": "outrider-bench load"}}', (), "no report of a study: need one of trace, exact"),
        ('{"made_by": {"study": "exact"}}', (), "no report of this version"),
        ('{"made_by": {"study": "exact"}}', ("--plot", "x.png"), "x.png: exact draws none"),
    ):
        path.write_text(content)
        assert said in str(run("show", path, *options).exception)


def test_options_that_draw_have_a_study_that_draws():
    for command in STUDIES:
        draws = command.study.plot is not Study.plot
        assert draws == ("plot" in command.options.__dataclass_fields__), command.name
