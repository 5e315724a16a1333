"""Drafters by the depth of their chains and trees, on the embedded pair."""

import json

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_proto.errors import UsageError


def swept(path, *options) -> dict:
    few = settings(per_family=1, families="math,qa", max_new_tokens=12, repetitions=1)
    command = ["depth-sweep", *few, "--drafter", "medusa", *options]
    result = CliRunner().invoke(app, [*command, "--json", str(path)])
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def chains(tmp_path_factory) -> dict:
    directory = tmp_path_factory.mktemp("chains")
    report = swept(directory / "report.json", "--levels", "5", *settings(plot=directory / "depths.png"))
    assert (directory / "depths.png").stat().st_size > 10_000
    return report


def test_deeper_chains_are_longer_and_draft_what_shorter_ones_do(chains):
    assert (chains["breadth"], chains["budget"]) == (None, None)
    drafted = [chains["comparison"]["drafters"][chains["ways"]["medusa"][f"{n}"]] for n in range(1, 6)]
    assert [len(one["positions"]["reached"]) for one in drafted] == [1, 2, 3, 4, 4]  # Medusa has four heads
    tau = [one["overall"] for one in drafted]
    assert 1 < tau[0] <= 2
    assert tau[0] < tau[1] < tau[2] < tau[3]
    assert all(one["mismatches"] == 0 for one in drafted)
    assert chains["comparison"]["speeds"].keys() > {"plain loop", "generate", "medusa, 5"}


def test_trees_have_the_size_that_is_asked_for(chains, tmp_path):
    trees = swept(tmp_path / "trees.json", "--levels", "3", "--set", "breadth=3")
    assert (trees["breadth"], trees["budget"]) == (3, 16)
    chain, tree = (report["comparison"]["drafters"]["medusa, 3"] for report in (chains, trees))
    assert tree["overall"] > chain["overall"]
    assert len(tree["positions"]["reached"]) == 3
    # Three levels of at most 3, 9 and 9 children, of which 16 are kept: more is drafted, and less of it accepted.
    assert tree["positions"]["rate"] < chain["positions"]["rate"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "breadth=65"), "breadth=65: need 1 to 64"),
        (("--target", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_swept_is_refused(options, said):
    result = CliRunner().invoke(app, ["depth-sweep", *options])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
