"""Lets the test modules of this folder import what they share, and starts their servers as forks."""

import sys
from pathlib import Path

import pytest

from outrider_bench.core import processes

sys.path.insert(0, str(Path(__file__).parent))

from forked_server import ForkedServer  # its folder is found only now


@pytest.fixture(scope="module", autouse=True)
def forked_servers():
    """`embedded_server`, of the whole session, comes before this and is a command of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Popen", ForkedServer)
        yield
