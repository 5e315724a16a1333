"""The gateway's defaults of sampling: the target's generation_config.json, below options and requests."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from outrider_client.cli.app import app
from outrider_client.models.local_models import recommended_sampling
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError


@pytest.fixture
def target(tmp_path):
    """Copy the embedded target, with more in its generation_config.json."""

    def make(**more) -> str:
        shutil.copytree(target_dir(), tmp_path / "target")
        path = tmp_path / "target" / "generation_config.json"
        given = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(given | more))
        return str(tmp_path / "target")

    return make


@pytest.fixture
def serving(monkeypatch):
    """Run `outrider gateway` up to where it would serve; return what it would serve with."""
    served = []
    monkeypatch.setattr("outrider_client.gateway.serving.serve", lambda *configs: served.append(configs))

    def run(*arguments: str):
        result = CliRunner().invoke(app, ["gateway", *arguments])
        assert result.exit_code == 0, result.output
        return served[-1]

    return run


def test_the_files_values_are_the_gateways(target, serving):
    made = target(do_sample=True, temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1, max_new_tokens=77)
    client, gateway = serving("--target", made, "--drafter", "lookup")
    sampling = client.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 20)
    assert sampling.rules.repetition_penalty == 1.1
    assert gateway.max_tokens == 77


def test_options_come_first(target, serving):
    made = target(temperature=0.6, top_p=0.9, max_new_tokens=77)
    client, gateway = serving("--target", made, "--drafter", "lookup", "--temperature", "0", "--max-new-tokens", "5")
    assert (client.sampling.temperature, client.sampling.top_p) == (0.0, 0.9)
    assert gateway.max_tokens == 5
    client, gateway = serving("--target", made, "--drafter", "lookup", "--no-generation-config")
    assert client.sampling.temperature == 0
    assert gateway.max_tokens is None


def test_a_file_that_samples_without_a_temperature_means_1_and_the_embedded_targets_says_nothing(target):
    assert recommended_sampling(target(do_sample=True, top_k=64)) == {"temperature": 1.0, "top_k": 64}
    assert recommended_sampling("embedded") == {}


@pytest.mark.parametrize(
    ("given", "message"), [({"top_p": 2}, "top_p=2: need more than 0"), ({"temperature": "hot"}, "generation_config")]
)
def test_values_that_make_no_sense_are_refused_with_the_files_name(target, given, message):
    with pytest.raises(UsageError, match=message) as refused:
        recommended_sampling(target(**given))
    assert "generation_config.json" in str(refused.value)
    assert "--no-generation-config" in str(refused.value)
