"""A real server with the embedded pair, in a thread of its own, for all examples."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_server import Server, ServerConfig

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
sys.path.insert(0, str(TESTS / "client" / "gateway"))

from in_thread import InThread  # noqa: E402 # found only now


@pytest.fixture(scope="session")
def server():
    """Its address."""
    config = ServerConfig(str(target_dir()), (str(drafter_dir("moa")),), port=0, edge_bundle=False)
    with InThread(lambda: Server.build(config)) as running:
        yield running.address


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module
