"""Experiment files: what they say, what overrides them, and that a mistake names file and key."""

from pathlib import Path

import pytest

from outrider_bench.network.experiment import planned
from outrider_bench.network.records import CaseKey
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.held_out import FAMILIES
from outrider_proto.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "examples" / "network.toml"


def written(tmp_path, text: str) -> Path:
    (tmp_path / "mine.toml").write_text(text)
    return tmp_path / "mine.toml"


def test_without_a_file_it_is_one_link_all_families_and_four_prompts_of_each():
    plan = planned(None, {})
    assert plan.cases == [CaseKey("moa", "paper-5g", 1)]
    assert plan.families == list(FAMILIES)
    assert plan.prompts == 4 * len(FAMILIES)


def test_cases_are_drafters_by_links_by_seeds(tmp_path):
    text = 'profiles = ["none", "lan"]\ndrafters = ["moa", "eagle2"]\nseeds = [1, 11]\nruns = 3\n'
    plan = planned(written(tmp_path, text), {})
    assert len(plan.cases) == 8
    assert plan.cases[:3] == [CaseKey("moa", "none", 1), CaseKey("moa", "none", 11), CaseKey("moa", "lan", 1)]


def test_the_command_line_overrides_the_file_key_by_key(tmp_path):
    text = 'profiles = ["lan"]\nruns = 5\nmodes = ["proactive", "stream"]\n[tree]\nlevels = 3\nbudget = 6\n'
    plan = planned(written(tmp_path, text), {"runs": 2, "tree": {"budget": 9}}, {"profiles": ["none"]})
    assert (plan.profiles, plan.runs, plan.variants) == (("lan",), 2, ["proactive"])
    assert (plan.common["levels"], plan.common["budget"]) == (3, 9)


def test_files_are_found_beside_the_experiment(tmp_path):
    (tmp_path / "slow.toml").write_text("source = 'x'\nverify_ms = 1\ndraft_level_ms = 1\nserver_level_ms = 1\n")
    plan = planned(written(tmp_path, 'pace = "slow.toml"\n'), {})
    assert Pace.load(plan.pace).name == "slow"
    assert planned(written(tmp_path, 'pace = "paper"\n'), {}).pace == "paper"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt = 3", "key 'prompt' is unknown: did you mean prompts"),
        ("[tree]\ndepth = 3", "key 'tree.depth' is unknown: choose from breadth, levels, budget"),
        ("tree = 3", r"tree=3: need a table, \[tree\]"),
        ("runs = 'two'", 'runs="two": need a valid integer'),
        ("runs = true", "runs=true: need a valid integer"),
        ("runs = 0", "runs=0: need at least 1"),
        ("profiles = 'lan'", 'profiles="lan": need a list, in brackets'),
        ("profiles = []", r"profiles=\[\]: need at least one"),
        ("profiles = ['moon']", "profile 'moon' is unknown"),
        ("modes = ['telepathy']", "mode='telepathy'"),
        ("families = ['code', 'maths']", "families='maths': did you mean math"),
        ("codec = 'zip'", "codec='zip': choose from int8"),
        ("pace = 'abacus'", "pace abacus: need"),
        ("seeds = [1, 2]\nruns = 3", r"seeds=\[1, 2\]: need them 3 or more apart"),
        ("runs = ", "not TOML"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path, text, message):
    file = written(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        planned(file, {})
    assert str(file) in str(caught.value)


def test_a_mistake_on_the_command_line_is_not_the_file_s(tmp_path):
    with pytest.raises(UsageError, match=r"^profile 'moon'"):
        planned(written(tmp_path, "runs = 2\n"), {"profiles": ["moon"]})
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        planned(tmp_path / "gone.toml", {})


def test_settings_tell_other_links_and_hardware_of_the_same_name_apart(tmp_path):
    settings = planned(written(tmp_path, 'profiles = ["none", "paper-4g"]\npace = "paper"\n'), {}).settings
    assert settings["profiles"]["none"] is None
    assert settings["profiles"]["paper-4g"]["up"]["delay_ms"] > 20
    assert settings["pace"]["verify_ms"] == 33.0


def test_the_example_is_a_whole_experiment():
    plan = planned(EXAMPLE, {})
    assert len(plan.cases) == 4
    assert plan.pace == "paper"
