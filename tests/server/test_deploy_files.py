"""The files in deploy/: as far as they can be tried without an engine, an init or a Grafana."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "outrider-server.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()
INSTRUCTIONS = {"FROM", "ARG", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL"}
INSTRUCTIONS |= {"ENTRYPOINT", "CMD"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "outrider-server.service"
    unit.write_text(UNIT.replace("/opt/outrider/bin/outrider-server", sys.executable))  # it must exist
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    if "not been booted" in checked.stderr or "Failed to" in checked.stderr:
        pytest.skip(checked.stderr.splitlines()[0])
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)")
def test_prometheus_takes_the_alerts():
    rules = DEPLOY / "prometheus-alerts.yml"
    checked = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_unit_waits_longer_than_the_example_drains():
    drain_s = tomllib.loads((DEPLOY / "outrider.toml").read_text())["limits"]["drain_s"]
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1]) > drain_s + 5


def instructions() -> list[tuple[str, str]]:
    """Of the container file: comments dropped, continued lines joined."""
    text = "\n".join(line for line in CONTAINER.splitlines() if not line.startswith("#"))
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_container_file_is_well_formed():
    parts = instructions()
    assert {name for name, _ in parts} <= INSTRUCTIONS
    assert parts[0][0] == "FROM"
    names = [name for name, _ in parts]
    assert names.count("FROM") == 2
    for name, rest in parts:
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)
    (check,) = [rest for name, rest in parts if name == "HEALTHCHECK"]
    _, _, script = json.loads(check.partition("CMD ")[2])
    compile(script, "HEALTHCHECK", "exec")


def test_the_container_does_not_run_as_root():
    (user,) = [rest for name, rest in instructions() if name == "USER"]
    assert user.isdigit()
    assert int(user) > 0


def test_container_and_example_agree_on_ports():
    example = tomllib.loads((DEPLOY / "outrider.toml").read_text())
    (exposed,) = [rest for name, rest in instructions() if name == "EXPOSE"]
    assert exposed.split() == [str(example["port"]), str(example["telemetry"]["metrics_port"])]
