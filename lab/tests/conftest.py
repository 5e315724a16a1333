"""The lab's tests start servers as those of bench do, and share their files of the same kind."""

import sys
from pathlib import Path

import pytest

from outrider_bench.core import processes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "bench"))

from forked_server import ForkedServer  # its folder is found only now


@pytest.fixture(scope="module", autouse=True)
def forked_servers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Popen", ForkedServer)
        yield
