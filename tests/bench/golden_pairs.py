"""Every drafter there is on a golden target: checkpoints of the published codes, drafters that need none, and random
ones of the kinds that no checkpoint here is of."""

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.checkpoints.target_weights import target_sizes
from outrider_drafters.families.hydra.network import Hydra, HydraSizes
from outrider_drafters.families.moa.network import MoA, MoASizes
from outrider_server.engine.target import Target

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
TARGETS = {
    "eagle2_llama": "target_l4",
    "eagle3_llama": "target_l8",
    "moa_tli0": "target_tiny",
    "moa, TLI 1": "target_tiny",
    "moa without LSA": "target_tiny",
    "medusa_v01": "target_vicuna_tiny",
    "hydra_mlp": "target_vicuna_tiny",
    "hydra++": "target_vicuna_tiny",
    "independent": "target_tiny",
    "lookup": "target_vicuna_tiny",
}
PROMPTS = ([1, 203, 97, 134, 95, 157, 217, 127, 136, 132, 233, 255], [1, 205, 36, 252, 143, 44, 179, 124, 18, 114, 78])


@lru_cache
def source(name: str) -> str:
    """Where a drafter is found."""
    match name:
        case "lookup":
            return "lookup"
        case "independent":
            return str(GOLDEN / "target_vicuna_tiny")
        case "moa, TLI 1":
            return f"{GOLDEN / 'moa_tli0' / 'drafter'},tli=1"
        case "moa without LSA":
            sizes = target_sizes(GOLDEN / TARGETS[name])
            return _exported(MoA(MoASizes(sizes.hidden, sizes.heads, sizes.head_dim, 0, 0, 0, 2, 48, 2, 48)), name)
        case "hydra++":
            sizes = target_sizes(GOLDEN / TARGETS[name])
            prefix = BlockShape(sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim, 48)
            return _exported(Hydra(HydraSizes(sizes.hidden, sizes.vocab, heads=3, prefix=prefix)), name)
        case _:
            return str(GOLDEN / name / "drafter")


def _exported(network: MoA | Hydra, name: str) -> str:
    """Random weights, large enough that every input matters, in the published layout."""
    generator = torch.Generator().manual_seed(5)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    directory = _scratch() / name.replace(" ", "-")
    network.export(directory, target_sizes(GOLDEN / TARGETS[name]))
    return str(directory)


@lru_cache
def _scratch() -> Path:
    """Gone when the tests are."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory)
    return Path(directory)


@lru_cache
def target(name: str) -> Target:
    return Target.load(str(GOLDEN / name))


@lru_cache
def models(name: str, target_name: str | None = None) -> LocalModels:
    """The client's side of a drafter, also of one that another target can take."""
    return LocalModels.load(ClientConfig(target=GOLDEN / (target_name or TARGETS[name]), drafter=source(name)))
