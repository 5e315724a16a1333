"""Routing measured on the embedded pair."""

import json

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_lab.studies.routing import routings
from outrider_proto.errors import UsageError


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("routing") / "report.json"
    command = ["routing", *settings(per_family=1, families="math,chat", max_new_tokens=12, gate=0.5, repetitions=2)]
    result = CliRunner().invoke(app, [*command, "--json", str(path)])
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


def test_every_way_is_exact(measured):
    drafters = measured["comparison"]["drafters"]
    assert list(drafters) == ["head 1: eagle2_math", "head 2: eagle2_chat", *routings(0.5)]
    assert all(way["mismatches"] == 0 and way["overall"] > 1 for way in drafters.values())


def test_what_the_second_head_costs(measured):
    first, second, apart, batch, _, gated, gated_batch = measured["costs"].values()
    assert first["extra_drafts"] == second["extra_drafts"] == 0.0
    assert apart["extra_drafts"] == batch["extra_drafts"] == 1.0  # the routing report's +100 %
    assert apart["passes_per_1000_tokens"] == pytest.approx(2 * batch["passes_per_1000_tokens"])
    assert 0 < gated["skipped"] == pytest.approx(1 - gated["extra_drafts"])
    assert gated_batch["extra_drafts"] == gated["extra_drafts"]
    assert apart["shares"].keys() == {"eagle2_math", "eagle2_chat"}
    assert sum(apart["shares"].values()) == pytest.approx(1)
    assert all(cost["confidence"]["accepted"] > cost["confidence"]["rejected"] for cost in (first, apart, gated))


def test_each_head_knows_its_own_text_and_the_router_both(measured):
    drafters = measured["comparison"]["drafters"]
    math, chat, apart, batch, *_ = (way["tau"] for way in drafters.values())
    assert math["math"] > 2 * chat["math"]
    assert chat["chat"] > 2 * math["chat"]
    assert apart == batch
    assert min(batch["math"], batch["chat"]) > 3


def test_missing_heads_are_refused():
    result = CliRunner().invoke(app, ["routing", "--heads", "/nowhere", "--heads", "/neither"])
    assert isinstance(result.exception, UsageError)
    assert "/nowhere" in str(result.exception)
