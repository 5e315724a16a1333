"""One server for all tests of links: its process takes seconds to import torch and transformers."""

import pytest

from outrider_bench.core.processes import ServerProcess
from outrider_models.core.embedded import drafter_dir, target_dir


@pytest.fixture(scope="session")
def embedded_server():
    """The embedded pair, drafting on the server, too."""
    options = ["--target", str(target_dir()), "--drafter", str(drafter_dir("moa")), "--server-draft"]
    with ServerProcess(options) as process:
        yield process
