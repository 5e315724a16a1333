"""Lets the test modules of this folder import what they share, and from the server's and the client's tests."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server"), str(HERE.parent / "client")]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Where int8 targets are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
