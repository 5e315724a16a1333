"""Acceptance with parts of a prompt's features: all rows count as the replay does, and only chosen rows are read."""

import asyncio
import json

import pytest
import torch
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.studies.features.prompt_rows import (
    GappedState,
    PromptRows,
    count,
    measure_prompt_rows,
    prompt_row_choices,
)
from outrider_bench.studies.features.recorded_features import record
from outrider_bench.studies.features.staleness import Degradation, measure
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.target import Target


@pytest.mark.parametrize(
    ("part", "rows"),
    [(PromptRows("newest", 3), (7, 10)), (PromptRows("oldest", 3), (0, 3)), (PromptRows("newest", 30), (0, 10))],
)
def test_the_rows_of_a_part(part, rows):
    assert part.of(10) == rows


@pytest.fixture(scope="module")
def record_features():
    return asyncio.run(record_some())


async def record_some():
    """MoA and three answers."""
    target = Target.load(str(target_dir()))
    config = stop_and_wait_config(target=target_dir(), drafter=drafter_dir("moa"), codec="float32")
    async with in_process(target_dir(), config, target) as pair:
        asked = questions(pair.models, lambda family: 1 if family in ("chat", "math", "qa") else 0)
        answers = plain_answers(target, asked, 16, lambda *_: None)
        return pair.models.drafter, await record(pair, asked, answers)


def test_all_rows_count_as_the_replay_does(record_features):
    drafter, recordings = record_features
    (fresh,) = measure(drafter, recordings, {}, SHAPES["chain"], [Degradation()])
    everything = [PromptRows("newest", 999), PromptRows("oldest", 999)]
    for one in measure_prompt_rows(drafter, recordings, SHAPES["chain"], everything):
        assert one == fresh.overall


def test_less_is_accepted_with_few_rows(record_features):
    drafter, recordings = record_features
    _, *few = measure_prompt_rows(drafter, recordings, SHAPES["chain"], prompt_row_choices([2]))
    assert len(few) == 2
    assert all(one.share < 1 for one in few)


def test_rows_left_out_are_not_read(record_features):
    drafter, recordings = record_features
    recording, part = recordings[0], PromptRows("newest", 5)
    features = recording.features.clone()
    features[: len(recording.prompt) - 5] = torch.nan
    spoilt = type(recording)(recording.prompt, recording.answer, features)
    counts = [count(GappedState(drafter), one, SHAPES["chain"], part) for one in (recording, spoilt)]
    assert counts[0] == counts[1]


def test_other_drafters_cannot_leave_rows_out():
    class Other:
        family = "eagle2"

    with pytest.raises(UsageError, match="eagle2"):
        measure_prompt_rows(Other(), [], SHAPES["chain"], [])


def test_the_command(tmp_path):
    path = tmp_path / "report.json"
    few = ["--per-family", "1", "--max-new-tokens", "3", "--rows", "4", "--json", str(path)]
    result = CliRunner().invoke(app, ["prompt-rows", *few])
    assert result.exit_code == 0, result.output
    shares = json.loads(path.read_text())["shares"]
    assert set(shares["tree"]) == {"all", "newest 4", "oldest 4"}
    assert shares["chain"]["all"]["share"] == 1


def test_bad_rows_are_refused():
    result = CliRunner().invoke(app, ["prompt-rows", "--rows", "4,none"])
    assert isinstance(result.exception, UsageError)
