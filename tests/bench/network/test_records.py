"""Rows of a measurement: read again as they were written, found by case, run and place, and flat as a table."""

from dataclasses import replace

import pytest
from network_answers import answer

from outrider_bench.network.records import AnswerEntry, CaseEntry, CaseKey, answer_rows
from outrider_bench.network.report import ScenarioSetting
from outrider_bench.network.scenario_run import slots_of_run
from outrider_bench.network.study import NetworkStudy
from outrider_bench.network.timed_answer import AnswerSlot
from outrider_bench.network.variants import STREAM, ModeVariant
from outrider_client.core.statistics import Statistics, TimeSplit

KEY = CaseKey("moa", "paper-4g", 1)
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


def rows() -> dict[str, CaseEntry | AnswerEntry]:
    return {str(KEY): case()} | {KEY.name_of(entry.slot): entry for entry in entries()}


def test_what_is_read_is_what_was_written_to_the_last_bit():
    written = {name: NetworkStudy.row.dump_json(row) for name, row in rows().items()}
    assert {name: NetworkStudy.row.validate_json(row) for name, row in written.items()} == rows()


def test_a_row_has_the_answer_beside_the_stream_s():
    first, second = answer_rows(entries()[:2])
    assert {first["way"], second["way"]} == set(WAYS)
    assert first["matches_stream"] is True
    assert (first["text"], first["link_seed"], first["held_tokens"]) == ("hard", 1, 2)
    assert first["ttft_warm_ms"] == 1 / 7
    assert first["ping_ms"] == pytest.approx((30.1 + 1 / 3) / 2)
    wrong = replace(entries()[1], answer=replace(entries()[1].answer, token_ids=(7,)))
    assert [row["matches_stream"] for row in answer_rows([entries()[0], wrong])].count(False) == 1


def test_the_order_of_the_ways_is_drawn_for_every_prompt_and_the_seed_s():
    slots = [slots_of_run(VARIANTS, 40, seed, run) for seed, run in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert slots[0] == slots[1]
    firsts = [tuple(slot.way for slot in of_run if slot.order == 0) for of_run in slots]
    assert len(set(firsts)) == 3
    assert 10 < firsts[0].count(STREAM) < 30
    assert slots[0][0] == AnswerSlot(0, 0, firsts[0][0], 0)
