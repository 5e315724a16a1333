"""Drafter directories in their published layouts: which family it is, and whether every tensor is accounted for.

Each family's file says what its tensors are called and how their shapes tell its sizes; both halves are loaded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar, assert_never

import torch
from torch import Tensor, nn

from outrider_drafters import eagle2, moa
from outrider_drafters.checkpoint import Checkpoint
from outrider_drafters.config import Config, config_int, read_config
from outrider_drafters.drafter import Drafter
from outrider_drafters.frozen import FrozenTarget, TargetSizes, resolve_dir, target_sizes
from outrider_drafters.tap import LastHiddenTap, Tap
from outrider_proto.errors import UsageError

Network = TypeVar("Network", bound=nn.Module)
Family = Literal["moa", "eagle2"]

IGNORED = ".rotary_emb.inv_freq"  # a buffer some older writers saved; it follows from rope_theta
MAX_NAMED = 8  # names in a message


def load_drafter(name_or_path: str | Path, frozen: FrozenTarget) -> Drafter:
    """The client half, in the type and on the device of `frozen`. Raises UsageError naming whatever does not fit."""
    config, checkpoint, family = _opened(name_or_path, frozen.sizes)
    match family:
        case "moa":
            network = _load_moa(config, checkpoint, frozen.sizes)
            info = moa.tap_info(network)  # of the values as stored
            return moa.MoADrafter(_moved(network, frozen.embed), frozen, info)
        case "eagle2":
            eagle = _moved(_load_eagle2(config, checkpoint, frozen.sizes), frozen.embed)
            return eagle2.Eagle2Drafter(eagle, frozen, _own_embedding(checkpoint, frozen))
        case _:
            assert_never(family)


def load_tap(
    name_or_path: str | Path,
    target_path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tap:
    """The server half. Raises UsageError naming whatever does not fit."""
    target = target_sizes(target_path)
    config, checkpoint, family = _opened(name_or_path, target)
    match family:
        case "moa":
            network = _load_moa(config, checkpoint, target)
            info = moa.tap_info(network)
            return moa.MoATap(_moved(network, torch.empty(0, dtype=dtype, device=device)), info)
        case "eagle2":
            return LastHiddenTap(_load_eagle2(config, checkpoint, target).sizes.hidden)
        case _:
            assert_never(family)


def family_of(config: Config, names: frozenset[str], directory: Path) -> Family:
    """From the tensors' names; a config's architecture only words the refusal. Raises UsageError."""
    if any(name.startswith(moa.PARTS) for name in names):
        return "moa"
    if any(name.startswith("midlayer.") for name in names) or "d2t" in names:
        raise UsageError(f"{directory}: an EAGLE-3 drafter; need one of moa, eagle2")
    if any(name.startswith(eagle2.PARTS) for name in names):
        return "eagle2"
    held = ", ".join(sorted(names)[:MAX_NAMED])
    raise UsageError(
        f"{directory}: not a drafter directory (architectures={config.get('architectures')}); need one of moa, eagle2, "
        f"but it holds {held} ..."
    )


def _opened(name_or_path: str | Path, target: TargetSizes) -> tuple[Config, Checkpoint, Family]:
    directory = resolve_dir(name_or_path)
    config, checkpoint = read_config(directory), Checkpoint(directory)
    family = family_of(config, checkpoint.names, directory)
    _check_vocabulary(config, checkpoint, target)
    return config, checkpoint, family


def _load_moa(config: Config, checkpoint: Checkpoint, target: TargetSizes) -> moa.MoA:
    _check_held(checkpoint, moa.REQUIRED)
    sizes = moa.sizes_of(checkpoint, config)
    _check_equal("hidden size", sizes.hidden, target.hidden, checkpoint)
    _check_equal("width of packed K/V", sizes.packed_kv, target.packed_kv, checkpoint)
    with torch.device("meta"):
        network = moa.MoA(sizes)
    _fill(network, checkpoint)
    return network


def _load_eagle2(config: Config, checkpoint: Checkpoint, target: TargetSizes) -> eagle2.Eagle2:
    _check_held(checkpoint, eagle2.REQUIRED)
    sizes = eagle2.sizes_of(checkpoint, config)
    _check_equal("hidden size", sizes.hidden, target.hidden, checkpoint)
    with torch.device("meta"):
        network = eagle2.Eagle2(sizes)
    _fill(network, checkpoint, also_known=frozenset({eagle2.EMBEDDING}))
    return network


def _own_embedding(checkpoint: Checkpoint, frozen: FrozenTarget) -> Tensor | None:
    """The drafter's embedding, unless it has none or it is the copy of the target's that it should be."""
    if eagle2.EMBEDDING not in checkpoint.names:
        return None
    own = checkpoint.read(eagle2.EMBEDDING).to(frozen.embed)
    return None if torch.equal(own, frozen.embed) else own


def _check_vocabulary(config: Config, checkpoint: Checkpoint, target: TargetSizes) -> None:
    _check_equal("vocab_size", config_int(config, "vocab_size", target.vocab), target.vocab, checkpoint)
    if eagle2.EMBEDDING in checkpoint.names:
        rows, width = checkpoint.matrix(eagle2.EMBEDDING)
        _check_equal(f"rows of {eagle2.EMBEDDING}", rows, target.vocab, checkpoint)
        _check_equal(f"width of {eagle2.EMBEDDING}", width, target.hidden, checkpoint)


def _check_equal(what: str, drafter: int, target: int, checkpoint: Checkpoint) -> None:
    if drafter != target:
        raise UsageError(f"{checkpoint.directory}: {what} is {drafter}, the target's {target}: made for another target")


def _check_held(checkpoint: Checkpoint, required: frozenset[str]) -> None:
    if missing := sorted(required - checkpoint.names):
        raise UsageError(f"{checkpoint.directory}: lacks tensors {_listed(missing)}")


def _fill(network: nn.Module, checkpoint: Checkpoint, also_known: frozenset[str] = frozenset()) -> None:
    """Read every tensor of a network made on the meta device, as stored; refuse missing, unknown and misshapen ones."""
    wanted = network.state_dict()
    _check_held(checkpoint, frozenset(wanted))
    held = {name for name in checkpoint.names if not name.endswith(IGNORED)}
    if unknown := sorted(held - set(wanted) - also_known):
        raise UsageError(f"{checkpoint.directory}: holds unknown tensors {_listed(unknown)}")
    for name, tensor in wanted.items():
        if checkpoint.shape(name) != tuple(tensor.shape):
            raise UsageError(
                f"{checkpoint.directory}: tensor {name} has shape {list(checkpoint.shape(name))}: "
                f"need {list(tensor.shape)}"
            )
    network.load_state_dict({name: checkpoint.read(name) for name in wanted}, assign=True)


def _moved(network: Network, like: Tensor) -> Network:
    return network.to(like.device, like.dtype).eval().requires_grad_(False)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
