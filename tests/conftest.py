"""What every test runs under: one torch thread, no network for models, reproducible property tests."""

import os

# Before anything imports huggingface_hub or torch, which read them once. Processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; more threads only get in each other's way

import asyncio
import functools
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from outrider_netsim import EngineError, Link, profile_named

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # whoever imported torch first

settings.register_profile("outrider", deadline=None, derandomize=True, database=None)
settings.load_profile("outrider")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell starts in the background,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and would be for all that the tests start


# Tests that would disturb each other get one group: `--dist loadgroup` runs a group one after another on one worker.
GROUPS = {
    "kernel": "two virtual machines at once take the memory and the processors from each other's clocks",
    "ray": "one local cluster, on fixed ports",
    "browser": "Chromium draws and animates in real time",
    "namespaces": "they count namespaces, devices and processes of the whole machine, and measure packets in real time",
}


def group_of(item: pytest.Item) -> str:
    """Name the group of a test: what it shares with others, else its module, whose fixtures are then made once."""
    markers = {marker.name for marker in item.iter_markers()}
    for group in ("kernel", "ray", "browser"):
        if group in markers:
            return group
    if "root" in markers or "engine" in getattr(item, "fixturenames", ()):
        return "namespaces"
    return item.location[0]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test its group, and begin with the longest groups, lest one worker be left with them at the end."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    groups = {item: group_of(item) for item in items}
    slow = {groups[item] for item in items if item.get_closest_marker("slow")} | GROUPS.keys()
    items.sort(key=lambda item: groups[item] not in slow)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item]))


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of checked-in test data."""
    return Path(__file__).parent / "data"


@pytest.fixture(
    scope="session",
    params=[pytest.param("kernel", marks=pytest.mark.root), pytest.param("tun", marks=pytest.mark.root), "proxy"],
)
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine of a link that this machine allows, in turn."""
    if refusal := refused(request.param):
        pytest.skip(refusal)
    return request.param


@functools.cache
def refused(engine: str) -> str:
    """Why this machine does not allow an engine; empty where it does."""

    async def tried() -> str:
        try:
            async with Link(profile_named("lan"), engine=engine):
                return ""
        except EngineError as error:
            return str(error)

    return asyncio.run(tried())


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """Folder of small checkpoints with the trees, features and logits that their published code gives."""
    return data / "golden"
