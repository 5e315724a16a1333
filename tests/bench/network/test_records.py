"""Records are written as answers come, read again whole, and never mixed with those of other settings."""

import csv
import json
from dataclasses import replace

import pytest
from network_answers import answer

from outrider_bench.network.records import AnswerEntry, CaseEntry, CaseKey, RecordFiles, Records
from outrider_bench.network.report import ScenarioSetting
from outrider_bench.network.scenario_run import slots_of_run
from outrider_bench.network.timed_answer import AnswerSlot
from outrider_bench.network.variants import STREAM, ModeVariant
from outrider_client.core.statistics import Statistics, TimeSplit
from outrider_proto.errors import UsageError

KEY = CaseKey("moa", "paper-4g", 1)
SETTINGS = {"runs": 1, "tree": {"levels": 5}, "profiles": {"paper-4g": {"delay_ms": 26.8}}}
WAYS = (STREAM, "stop-and-wait")
VARIANTS = [ModeVariant.parse(way, {}) for way in WAYS]


def case() -> CaseEntry:
    setting = ScenarioSetting("paper-4g", "tun", "", 53.6, "moa", "int8", None, None, ["qa"], 2, 21, 1, {"levels": 5})
    return CaseEntry(KEY, setting, WAYS, {"server-draft": "no features"})


def entries() -> list[AnswerEntry]:
    told = Statistics(new_tokens=21, bytes_up=3, acceptance_histogram=(1, 4), split_ms=TimeSplit(0.1, 1 / 3))
    return [
        AnswerEntry(KEY, slot, "qa", 44, (30.1, 1 / 3), replace(answer(told=told), held_tokens=2, warm_ms=1 / 7))
        for slot in slots_of_run(VARIANTS, 2, KEY.seed, 0)
    ]


def files(tmp_path, *, resume=False, settings=SETTINGS, table=True) -> RecordFiles:
    named = [tmp_path / "answers.jsonl", *([tmp_path / "answers.csv"] if table else [])]
    return RecordFiles.of(named, None, settings, resume=resume)


def write(tmp_path, count: int, complete: bool = False) -> None:
    with files(tmp_path).open() as records:
        records.begin(case())
        for entry in entries()[:count]:
            records.take(entry)
        if complete:
            records.complete()


def test_what_is_read_is_what_was_written_to_the_last_bit(tmp_path):
    write(tmp_path, 4)
    with files(tmp_path, resume=True).open() as records:
        assert records.cases == {KEY: case()}
        assert records.run_of(KEY, 0) == entries()
        assert records.run_of(KEY, 1) == []


def test_an_answer_is_in_the_file_before_the_next_one_is_asked(tmp_path):
    with files(tmp_path).open() as records:
        records.begin(case())
        for count, entry in enumerate(entries(), 1):
            records.take(entry)
            lines = (tmp_path / "answers.jsonl").read_text().splitlines()
            assert len(lines) == 2 + count
            rows = (tmp_path / "answers.csv").read_text().splitlines()
            assert len(rows) == (1 + count // 2 * 2 if count > 1 else 0)  # by prompt, below a head


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_was_never_finished_is_measured_again(tmp_path, cut):
    write(tmp_path, 3)
    path = tmp_path / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with files(tmp_path, resume=True).open() as records:
        missing = [entry for entry in entries() if not records.has(KEY, entry.slot)]
        assert missing == entries()[2:]
        for entry in missing:
            records.take(entry)
        records.complete()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["settings", "case", *["answer"] * 4, "complete"]


def test_the_table_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path):
    write(tmp_path, 4)
    whole = (tmp_path / "answers.csv").read_text()
    (tmp_path / "answers.jsonl").unlink()
    write(tmp_path, 1)
    with files(tmp_path, resume=True).open() as records:
        for entry in entries()[1:]:
            records.take(entry)
    assert (tmp_path / "answers.csv").read_text() == whole
    rows = list(csv.DictReader(whole.splitlines()))
    assert {row["way"] for row in rows} == set(WAYS)
    assert rows[0]["matches_stream"] == "True"
    assert (rows[0]["text"], rows[0]["link_seed"], rows[0]["held_tokens"]) == ("hard", "1", "2")
    assert float(rows[0]["ttft_warm_ms"]) == 1 / 7
    assert records.rows(KEY)[0]["ping_ms"] == pytest.approx((30.1 + 1 / 3) / 2)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**SETTINGS, "runs": 3}, "runs=3 here, 1 there: give the same options"),
        ({**SETTINGS, "tree": {"levels": 4}}, "tree.levels=4 here, 5 there"),
        ({**SETTINGS, "profiles": {"paper-4g": {"delay_ms": 30}}}, "profiles.paper-4g.delay_ms=30 here, 26.8 there"),
        ({**SETTINGS, "seeds": [1]}, r"seeds=\[1\] here, null there"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, other, message):
    write(tmp_path, 2)
    before = (tmp_path / "answers.jsonl").read_bytes()
    with pytest.raises(UsageError, match=message), files(tmp_path, resume=True, settings=other).open():
        pass
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def test_answers_of_an_unfinished_run_are_not_overwritten(tmp_path):
    write(tmp_path, 2)
    with pytest.raises(UsageError, match="holds 2 answers of an unfinished run: continue with --resume"):
        write(tmp_path, 2)
    (tmp_path / "answers.jsonl").unlink()
    write(tmp_path, 4, complete=True)
    write(tmp_path, 2)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("resume", [True, False])
def test_a_file_of_something_else_is_left_alone(tmp_path, resume):
    (tmp_path / "answers.jsonl").write_text('{"name": "mine"}\n')
    with pytest.raises(UsageError, match="no records of outrider-bench network"), files(tmp_path, resume=resume).open():
        pass
    assert (tmp_path / "answers.jsonl").read_text() == '{"name": "mine"}\n'


def test_a_line_that_is_no_record_is_named(tmp_path):
    write(tmp_path, 1)
    with (tmp_path / "answers.jsonl").open("a") as out:
        out.write('{"answer": {"key": 3}}\n')
    with pytest.raises(UsageError, match=r"answers.jsonl:4: no record"), files(tmp_path, resume=True).open():
        pass


def test_the_lines_are_beside_the_report_unless_named(tmp_path):
    assert RecordFiles.of([], tmp_path / "5g.json", {}, resume=True).lines == tmp_path / "5g.records.jsonl"
    assert RecordFiles.of([], None, {}, resume=False).lines is None
    for named, message in ((["a.txt"], "need one file that ends in"), (["a.csv", "b.csv"], "at most one")):
        with pytest.raises(UsageError, match=message):
            RecordFiles.of([tmp_path / name for name in named], None, {}, resume=False)
    with pytest.raises(UsageError, match="resume: need the file"):
        RecordFiles.of([], None, {}, resume=True)


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "answers.csv").mkdir()
    with pytest.raises(UsageError, match="cannot write"), files(tmp_path).open():
        pass


def test_the_order_of_the_ways_is_drawn_for_every_prompt_and_the_seed_s():
    slots = [slots_of_run(VARIANTS, 40, seed, run) for seed, run in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert slots[0] == slots[1]
    firsts = [tuple(slot.way for slot in of_run if slot.order == 0) for of_run in slots]
    assert len(set(firsts)) == 3
    assert 10 < firsts[0].count(STREAM) < 30
    assert slots[0][0] == AnswerSlot(0, 0, firsts[0][0], 0)


def test_records_in_memory_need_no_file():
    records = Records()
    records.begin(case())
    records.take(entries()[0])
    assert len(records) == 1
