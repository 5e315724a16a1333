"""A real server with the embedded models, in its own thread, for all examples."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from outrider_models import drafter_dir, target_dir
from outrider_server import Server, ServerConfig

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
sys.path[:0] = [str(TESTS / "client" / "gateway"), str(TESTS / "bench")]

from in_thread import InThread  # noqa: E402 # found only now


@pytest.fixture(scope="session")
def server():
    """Run a server and yield its address."""
    config = ServerConfig(str(target_dir()), (str(drafter_dir("moa")),), port=0, edge_bundle=False)
    with InThread(lambda: Server.build(config)) as running:
        yield running.address


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module
