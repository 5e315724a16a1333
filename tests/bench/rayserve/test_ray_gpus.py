"""`outrider-server deploy --gpus` on a cluster that counts GPUs, as Ray lets any machine do: they are given out.

The replicas themselves find no GPU here, and serve on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ray_process import RayProcess

from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import generated
from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import target_dir

pytest.importorskip("ray", reason='Ray is not installed: pip install -c constraints.txt ".[deploy]"')
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

NEW = 8


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": 2}))
    with RayProcess(
        ["--replicas", "3", "--gpus", "0.5", "--cpus", "0.1", "--set", "drain=1", "--set", "edge-bundle=false"]
    ) as ray:
        yield ray


def status(ray: RayProcess) -> str:
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", ray._ready["ray"]]
    return subprocess.run(command, env=ray._environment, capture_output=True, text=True, check=True).stdout


async def test_replicas_get_their_parts_of_the_gpus(ray):
    assert "1.5/2.0 GPU" in status(ray)
    assert len(ray.replicas()) == 3
    models = LocalModels.load(ClientConfig())
    asked = questions(models, 1)[:2]
    config = ClientConfig(server=ray.address, wait_for_link_s=600, patience=Patience(floor_s=2.0), mode="stop-and-wait")
    async with AsyncClient(config, models=models) as client:
        answers = [(await client.complete(question.prompt, max_new_tokens=NEW)).token_ids for question in asked]
    assert answers == generated(target_dir(), asked, NEW)
