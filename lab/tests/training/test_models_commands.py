"""The commands `outrider-lab train` and `corpus`."""

import lzma
from importlib import resources

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_models.core.held_out import PROMPTS_FILE
from outrider_proto.errors import UsageError


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_corpus_shows_samples():
    assert "Answer:" in run("corpus", "--family", "math", "--set", "count=1").output


def test_the_prompts_that_ship_are_those_that_the_corpus_draws(tmp_path):
    run("corpus", "--out", tmp_path / "prompts")
    shipped = resources.files("outrider_models") / "embedded" / PROMPTS_FILE
    # Not their bytes: another version of xz may pack them differently.
    assert lzma.decompress((tmp_path / "prompts").read_bytes()) == lzma.decompress(shipped.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus", "--family", "poetry"], 'family="poetry"'),
        (["corpus", "--out", "/nowhere/at/all"], "out=/nowhere/at/all"),
        (["train", "--recipe", "nothing", "--out", "OUT"], "recipe 'nothing'"),
        (["train", "--recipe", "target", "--out", "OUT", "--resume"], "holds no checkpoint"),
        (["train", "--recipe", "target", "--out", "OUT", "--set", "minutes=0"], "minutes=0"),
        (["train", "--recipe", "target", "--out", "FULL"], "not an empty directory"),
        (["train", "--recipe", "target", "--out", "OUT", "--set", "target=x"], "this recipe trains a target"),
        (["train", "--recipe", "target", "--out", "OUT", "--set", "start=eagle2"], "this recipe trains a target"),
        (["train", "--recipe", "eagle2", "--out", "OUT", "--set", "start=moa"], "lacks tensors"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    places = {"OUT": str(tmp_path / "out"), "FULL": str(tmp_path / "full")}
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, [places.get(a, a) for a in arguments], catch_exceptions=False)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
