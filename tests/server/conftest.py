"""Lets the test modules of this folder import what they share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "drafters"))  # for what writes GGUF files


@pytest.fixture(scope="session")
def truth() -> list[int]:
    """What the target says after PROMPT."""
    from talk import PROMPT
    from tiny_targets import target

    from outrider_server.engine.reference_decode import plain_greedy

    return plain_greedy(target(), PROMPT, 60)
