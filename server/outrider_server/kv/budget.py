"""The memory budget for K/V and features: its default, and what of it is in use."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from outrider_proto.errors import UsageError
from outrider_server.kv.size import MemorySize, show_bytes

_log = logging.getLogger(__name__)
_DEFAULT = MemorySize(share=0.5)
_DEVICE_DEFAULT = MemorySize(share=0.9)  # where nothing but the target lives; the rest is for its activations
_SWAP_DEFAULT = MemorySize(share=0.25)
_LEAST_TOKENS = 64  # of a session that is worth a server
_CONTEXT_SHARE = 4  # a session gets one part in so many of the budget,
_SHORT_CONTEXT = 4096  # or so many tokens
_FEATURE_BYTES = 4
_TAKEN_BYTES = 4 * 2**30  # for free where nobody tells, as on Windows
_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class RowShape:
    """Sizes of one layer's row of K/V."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LayerStack:
    """Layers whose rows are of one shape, and lie in one tensor."""

    row: RowShape
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes and place of one row of K/V in all layers of a target.

    `rows`: those of each layer. `readers`: layers that keep no rows, each with the earlier one whose rows it reads
    (Gemma 4 has them, and layers that differ).
    """

    rows: tuple[RowShape, ...]
    dtype: torch.dtype
    device: torch.device
    readers: tuple[tuple[int, int], ...] = ()
    stacks: tuple[LayerStack, ...] = field(init=False, repr=False, compare=False)
    _places: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        readers = dict(self.readers)
        rows = {layer: row for layer, row in enumerate(self.rows) if layer not in readers}
        stacks = tuple(
            LayerStack(row, tuple(layer for layer, own in rows.items() if own == row))
            for row in dict.fromkeys(rows.values())
        )
        places = {
            layer: (number, index) for number, stack in enumerate(stacks) for index, layer in enumerate(stack.layers)
        }
        object.__setattr__(self, "stacks", stacks)
        object.__setattr__(self, "_places", tuple(places[readers.get(layer, layer)] for layer in range(len(self.rows))))

    @property
    def bytes_per_token(self) -> int:
        values = sum(
            len(stack.layers) * stack.row.kv_heads * (stack.row.key_dim + stack.row.value_dim) for stack in self.stacks
        )
        return values * self.dtype.itemsize

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row with `width` features."""
        return self.bytes_per_token + width * _FEATURE_BYTES

    def place(self, layer: int) -> tuple[int, int]:
        """Return the stack in which a layer's rows are, and which layer of it they are."""
        return self._places[layer]

    def keeps(self, layer: int) -> bool:
        """Return whether a layer keeps rows of its own."""
        number, index = self._places[layer]
        return self.stacks[number].layers[index] == layer


class OutOfKVMemory(Exception):
    """Raised where the budget has no room now; nothing has changed, and a later try may succeed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"no room for {num_bytes} bytes of K/V")
        self.num_bytes = num_bytes


class MemoryBudget:
    """Count the bytes in use, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def take(self, num_bytes: int) -> None:
        """Count `num_bytes` as used. Raises OutOfKVMemory."""
        if num_bytes > self.free_bytes:
            raise OutOfKVMemory(num_bytes)
        self.used_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Return bytes that were taken."""
        assert 0 <= num_bytes <= self.used_bytes
        self.used_bytes -= num_bytes


def budget_bytes(configured: str | None, shape: KVShape) -> int:
    """Return the configured size; where none is, half of the free memory, or nine tenths of a device's own.

    Raises UsageError for more than there is, and where that is too little for a single short session.
    """
    free = free_bytes(shape.device)
    default = _DEFAULT if shape.device.type == "cpu" else _DEVICE_DEFAULT
    num_bytes = (default if configured is None else MemorySize.parse(configured)).of(free)
    if num_bytes > (most := _total_bytes(shape.device)):
        raise UsageError(f"kv_memory={configured}: need at most {show_bytes(most)}, all the memory of {shape.device}")
    tokens = num_bytes // shape.bytes_per_token
    if tokens < _LEAST_TOKENS:
        raise UsageError(
            f"kv_memory={configured or default}: {show_bytes(num_bytes)} hold {tokens} tokens of K/V, and a session"
            f" needs at least {_LEAST_TOKENS} ({show_bytes(_LEAST_TOKENS * shape.bytes_per_token)});"
            f" {show_bytes(free)} are free on {shape.device} beside the target"
        )
    _log.info("%s for K/V and features, %d tokens of K/V alone", show_bytes(num_bytes), tokens)
    return num_bytes


def swap_bytes(configured: str | None, shape: KVShape) -> int:
    """Return how much of the host's memory is for evicted sessions: where nothing is configured, some for a GPU's.

    Raises UsageError for more than there is.
    """
    if configured == "0" or (configured is None and shape.device.type == "cpu"):
        return 0
    host = torch.device("cpu")
    num_bytes = (_SWAP_DEFAULT if configured is None else MemorySize.parse(configured, "kv_swap")).of(free_bytes(host))
    if num_bytes > (most := _total_bytes(host)):
        raise UsageError(f"kv_swap={configured}: need at most {show_bytes(most)}, all the memory of this machine")
    _log.info("%s of the host for the K/V of evicted sessions", show_bytes(num_bytes))
    return num_bytes


def fitting_context(max_context: int, num_bytes: int, shape: KVShape, width: int) -> int:
    """Return how many tokens a session may have: what a quarter of the memory holds, with features of `width`.

    A short text may take all of it. Logs a warning where that is less than the target's `max_context`.
    """
    rows = num_bytes // shape.row_bytes(width)
    context = min(max_context, max(rows // _CONTEXT_SHARE, min(rows, _SHORT_CONTEXT), 2))
    if context < max_context:
        _log.warning(
            "sessions of at most %d of the target's %d tokens: %s for K/V and features hold %d (--kv-memory); set"
            " --max-context for another limit",
            context,
            max_context,
            show_bytes(num_bytes),
            rows,
        )
    return context


def free_bytes(device: torch.device) -> int:
    """Return the bytes that this process may still take on the device, now that the target is loaded."""
    if device.type == "cuda":
        # What torch has freed and keeps for itself is free for this process.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min(_available_bytes(), cgroup_bytes(Path("/")))


def _total_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if not hasattr(os, "sysconf"):
        return _ENDLESS  # Windows
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: ask the C library
    total = _total_bytes(torch.device("cpu"))
    return _TAKEN_BYTES if total == _ENDLESS else total


@dataclass(frozen=True, slots=True)
class _CgroupVersion:
    """Names of the files of a group, and of fields in its memory.stat."""

    folder: str  # below /sys/fs/cgroup
    limits: tuple[str, ...]
    used: str
    cache: str
    mapped: str


_V1 = _CgroupVersion(
    "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file", "total_mapped_file"
)
_V2 = _CgroupVersion("", ("memory.max", "memory.high"), "memory.current", "inactive_file", "file_mapped")


def cgroup_bytes(root: Path) -> int:
    """Return the memory that containers and systemd units leave this process; practically endless without a limit.

    `root`: where /proc and /sys are.
    """
    left = _ENDLESS
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        version = _V1 if controllers else _V2
        mount = root / "sys/fs/cgroup" / version.folder
        # A container sees its own group as the mount itself; the path may then be that of the host, which is not there.
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            left = min(left, _left_in(folder, version))
            if folder == mount:
                break
    return left


def _left_in(group: Path, version: _CgroupVersion) -> int:
    limits = [int(text) for name in version.limits if (text := _text(group / name)).isdecimal()]
    if not limits:
        return _ENDLESS
    pairs = [line.split() for line in _text(group / "memory.stat").splitlines()]
    stat = {name: int(value) for name, value in pairs}
    # Pages of files count as used, but the kernel gives them back when asked: those of a checkpoint that was just read
    # would leave nothing. Not those that are mapped: weights may lie there.
    cache = max(stat.get(version.cache, 0) - stat.get(version.mapped, 0), 0)
    return max(min(limits) - int(_text(group / version.used) or 0) + cache, 0)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
