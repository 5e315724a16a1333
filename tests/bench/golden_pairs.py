"""Golden targets, and where the drafters for them are found."""

from functools import lru_cache
from pathlib import Path

from outrider_server.engine.target import Target

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TARGETS = {"moa_tli0": "target_tiny", "medusa_v01": "target_vicuna_tiny", "lookup": "target_vicuna_tiny"}
PROMPTS = ([1, 203, 97, 134, 95, 157, 217, 127, 136, 132, 233, 255], [1, 205, 36, 252, 143, 44, 179, 124, 18, 114, 78])


def source(name: str) -> str:
    return name if name == "lookup" else str(GOLDEN / name / "drafter")


@lru_cache
def target(name: str) -> Target:
    return Target.load(str(GOLDEN / name))
