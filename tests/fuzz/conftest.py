"""Lets the test modules of this folder import the targets, and those the tiny models of the server's tests."""

import sys
import tracemalloc
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "server")]


@pytest.fixture(autouse=True)
def traced_no_longer():
    """The targets watch what is allocated; whoever comes next would be slow for it."""
    yield
    tracemalloc.stop()
