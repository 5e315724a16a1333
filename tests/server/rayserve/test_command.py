"""Mistakes of `outrider-server deploy`: one line and exit code 2, before anything is started; what replicas share."""

import sys
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from outrider_server.cli.app import app
from outrider_server.config.config import Scale


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(
            ["--set", "target=/none/such", "--set", "port=0"],
            "/none/such",
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
        ),
        (["--replicas", "0"], "replicas=0: need at least 1"),
        (["--replicas", "2", "--max-replicas", "1"], "max_replicas=1: need at least replicas=2"),
        (["--remove"], "remove needs --ray-address"),
        (["--set", "host=0.0.0.0"], "host=0.0.0.0: others can reach it"),
    ],
)
def test_mistakes(options, complaint):
    result = CliRunner().invoke(app, ["deploy", *options])
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, ["deploy"])
    assert result.exit_code == 2
    assert result.stderr.endswith(': Ray is not installed: pip install "outrider[deploy]"\n')


@pytest.mark.parametrize(
    ("scale", "machines", "share"),
    [
        (Scale(), 1, "50%"),
        (Scale(3), 1, "16.7%"),
        (Scale(2, 5, surge=True), 1, "5%"),
        (Scale(6), 4, "25%"),
        (Scale(6, gpus=1.0), 1, "50%"),
        (Scale(6, gpus=0.5), 1, "25%"),
        (Scale(2, gpus=0.1), 1, "25%"),
    ],
)
def test_replicas_divide_what_they_may_share(scale, machines, share):
    assert scale.kv_memory(machines) == share


def test_replicas_on_gpus_divide_their_machines_memory_too():
    assert Scale(6, gpus=0.5).kv_swap(2) == "8.33%"
    assert Scale(6).kv_swap(2) == "0"
