"""Experiment files: what they say, what overrides them, and that a mistake names the key."""

from pathlib import Path

import pytest

from outrider_bench.network.options import load_network
from outrider_bench.network.records import CaseKey
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.held_out import FAMILIES
from outrider_proto.errors import UsageError

EXAMPLE = Path(__file__).parents[3] / "examples" / "network.toml"


def planned(tmp_path, text="", **given):
    (tmp_path / "mine.toml").write_text(text)
    return load_network(tmp_path / "mine.toml" if text else None, given).plan


def test_without_a_file_it_is_one_link_all_families_and_four_prompts_of_each(tmp_path):
    plan = planned(tmp_path)
    assert plan.cases == [CaseKey("moa", "paper-5g", 1)]
    assert plan.families == list(FAMILIES)
    assert plan.prompts == 4 * len(FAMILIES)


def test_cases_are_drafters_by_links_by_seeds(tmp_path):
    plan = planned(tmp_path, 'profiles = ["none", "lan"]\ndrafters = ["moa", "eagle2"]\nseeds = [1, 11]\nruns = 3\n')
    assert len(plan.cases) == 8
    assert plan.cases[:3] == [CaseKey("moa", "none", 1), CaseKey("moa", "none", 11), CaseKey("moa", "lan", 1)]


def test_the_command_line_overrides_the_file_key_by_key(tmp_path):
    text = 'profiles = ["lan"]\nruns = 5\nmodes = ["proactive", "stream"]\n[tree]\nlevels = 3\nbudget = 6\n'
    plan = planned(tmp_path, text, runs=2, tree={"budget": 9}, table3=True)
    assert (plan.profiles, plan.runs, plan.variants) == (("lan",), 2, ["proactive"])
    assert (plan.common["levels"], plan.common["budget"]) == (3, 9)


def test_the_papers_table_has_its_links_and_drafters(tmp_path):
    plan = planned(tmp_path, table3=True)
    assert plan.profiles == ("none", "paper-5g", "paper-4g")
    assert plan.drafters == ("moa_tli1", "moa", "eagle2", "independent")


def test_files_are_found_beside_the_experiment(tmp_path):
    (tmp_path / "slow.toml").write_text("source = 'x'\nverify_ms = 1\ndraft_level_ms = 1\nserver_level_ms = 1\n")
    plan = planned(tmp_path, 'pace = "slow.toml"\n')
    assert Pace.load(plan.pace).name == "slow"
    assert planned(tmp_path, 'pace = "paper"\n').pace == "paper"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tree]\ndepth = 3", r"\[tree\] depth: no such key; choose from breadth, levels, budget"),
        ("runs = 'two'", 'mine.toml: runs="two": input should be a valid integer'),
        ("runs = 0", "runs=0: need at least 1"),
        ("dtype = 'int3'", "dtype=int3: need one of float32, bfloat16, float16, int8"),
        ("profiles = ['moon']", "profile 'moon' is unknown"),
        ("modes = ['telepathy']", "mode='telepathy'"),
        ("families = ['code', 'maths']", "families='maths': did you mean math"),
        ("codecs = ['zip']", "codecs="),
        ("pace = 'abacus'", "pace abacus: need"),
        ("seeds = [1, 2]\nruns = 3", r"seeds=\[1, 2\]: need them 3 or more apart"),
    ],
)
def test_a_mistake_names_the_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        planned(tmp_path, text)


def test_settings_tell_other_links_and_hardware_of_the_same_name_apart(tmp_path):
    settings = planned(tmp_path, 'profiles = ["none", "paper-4g"]\npace = "paper"\n').settings
    assert settings["profiles"]["none"] is None
    assert settings["profiles"]["paper-4g"]["up"]["delay_ms"] > 20
    assert settings["pace"]["verify_ms"] == 33.0


def test_the_example_is_a_whole_experiment():
    plan = load_network(EXAMPLE, {}).plan
    assert len(plan.cases) == 4
    assert plan.pace == "paper"
