"""Every drafter there is on a golden target: checkpoints of the published codes, and the drafters that need none."""

from functools import lru_cache
from pathlib import Path

from outrider_client.config import ClientConfig
from outrider_client.local_models import LocalModels
from outrider_drafters.families import FAMILIES
from outrider_server.target import Target

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TARGETS = {"eagle2": "target_l4", "eagle3": "target_l8", "moa": "target_tiny", "medusa": "target_vicuna_tiny"}
TARGETS |= {"hydra": "target_vicuna_tiny"}
WITHOUT_CHECKPOINT = {"lookup": "target_vicuna_tiny", "independent": "target_tiny"}
PROMPTS = ([1, 203, 97, 134, 95, 157, 217, 127, 136, 132, 233, 255], [1, 205, 36, 252, 143, 44, 179, 124, 18, 114, 78])


def drafters() -> dict[str, str]:
    """Where every drafter is found, by name: the golden cases, lookup, and a target as another's drafter."""
    found = {path.parent.name: str(path) for path in sorted(GOLDEN.glob("*/drafter"))}
    others = {"lookup": "lookup", "independent": str(GOLDEN / "target_vicuna_tiny")}
    return found | {name: source for name, source in others.items() if name in {family.name for family in FAMILIES}}


def target_of(name: str) -> str:
    """The golden target of a drafter."""
    return WITHOUT_CHECKPOINT.get(name) or next(t for family, t in TARGETS.items() if name.startswith(family))


@lru_cache
def target(name: str) -> Target:
    return Target.load(str(GOLDEN / name))


@lru_cache
def models(name: str, target_name: str | None = None) -> LocalModels:
    """The client's side of a drafter, also of one that another target can take."""
    return LocalModels.load(ClientConfig(target=GOLDEN / (target_name or target_of(name)), drafter=drafters()[name]))
