"""The tensors of a model directory, read one by one: safetensors or pickles, each as one file or shards.

Nothing is loaded before it is requested, and every fault of a file is a UsageError that names it. Pickles are read with
`weights_only`: code in them never runs.
"""

import json
import mmap
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from outrider_drafters.quantization.quantize import rebuild_weights
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.config import Config, read_json
from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
MODELS = (SINGLE, INDEX, PICKLED, PICKLED_INDEX)
MEDUSA_HEADS = "medusa_lm_head.safetensors"
HYDRA_HEADS = "hydra_lm_head.safetensors"
HEADS = (MEDUSA_HEADS, "medusa_lm_head.pt", HYDRA_HEADS, "hydra_lm_head.pt")  # Medusa's and Hydra's alone
ROWS = "outrider_rows.safetensors"
_SAMPLED_ROWS = 4096  # a large target's fingerprint must not take long
_MAPPED_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I8": torch.int8}
_MAPS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # of files, by the address that each begins at
_MAX_NAMED, _MAX_NAME = 8, 80  # names in a message, and characters of each
WRITE_ERRORS = (OSError, SafetensorError)  # a full disk is the latter where safetensors writes


def write_model(
    directory: Path, config: Config, tensors: Mapping[str, Tensor], dtype: torch.dtype, file: str = SINGLE
) -> None:
    """Save config.json and the tensors, floating-point ones as `dtype`; tied tensors are stored under each name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored, written = {}, set()
    for name, tensor in tensors.items():
        stored_as = dtype if tensor.is_floating_point() else tensor.dtype
        # safetensors refuses tensors that share memory, as tied blocks do: every further name gets a copy.
        copied = tensor.detach().to("cpu", stored_as, copy=tensor.data_ptr() in written)
        stored[name] = copied.contiguous()
        written.add(tensor.data_ptr())
    save_file(stored, directory / file, metadata={"format": "pt"})


def sampled_rows(tensor: Tensor) -> Tensor:
    """Return the rows of an embedding or lm_head that a target's fingerprint is made of, evenly spaced."""
    # Any change here changes the fingerprints of all targets.
    return tensor[:: -(-len(tensor) // _SAMPLED_ROWS)]


def read_exact_rows(directory: Path) -> Mapping[str, Tensor]:
    """Read the sampled rows beside a model of rounded weights, whose fingerprint is that of the exact one."""
    return load_file(path) if (path := directory / ROWS).is_file() else {}


def join_names(names: list[str]) -> str:
    """Join the first few names for a message."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(name[:_MAX_NAME] for name in names[:_MAX_NAMED]) + more


def need_finite(where: object, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UsageError, which names the first tensor that holds NaN or infinite values."""
    for name, tensor in tensors:
        # Quantized weights are Tensors too, and float8 has no such order: neither can be compared without decoding it.
        plain = type(tensor) in (Tensor, Parameter) and tensor.is_floating_point() and tensor.dtype.itemsize > 1
        # The extremes are NaN where any value is, and cost a tenth of isfinite().
        if plain and tensor.numel() and not torch.stack(tensor.detach().aminmax()).isfinite().all():
            raise UsageError(f"{where}: tensor {name} holds values that are no numbers: the file is damaged")


class Checkpoint:
    """The tensors of one directory, by name: a whole model comes before a file of heads, unless it is `heads_first`."""

    def __init__(self, directory: Path, *, heads_first: bool = False) -> None:
        self.directory = directory
        self._loaded: dict[str, Tensor] = {}
        files = self._find((*HEADS, *MODELS) if heads_first else (*MODELS, *HEADS))
        self._places = {name: (path, name) for name, path in files.items()}  # file, and the name there

    @classmethod
    def holding(cls, directory: Path, tensors: Mapping[str, Tensor]) -> Self:
        """Wrap tensors read in another way; messages name `directory`."""
        checkpoint = cls.__new__(cls)
        checkpoint.directory, checkpoint._loaded = directory, dict(tensors)
        checkpoint._places = {name: (directory, name) for name in tensors}
        return checkpoint

    def renamed(self, rename: Callable[[str], str | None]) -> Self:
        """Return a view with other names, without those renamed to None. Raises UsageError for two of one name."""
        checkpoint = self.holding(self.directory, {})
        checkpoint._loaded = self._loaded
        for name, new in ((name, rename(name)) for name in sorted(self._places)):
            if new in checkpoint._places:
                raise UsageError(f"{self.directory}: tensors {checkpoint._places[new][1]} and {name} are the same one")
            if new is not None:
                checkpoint._places[new] = self._places[name]
        return checkpoint

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    @property
    def holds_codes(self) -> bool:
        """True if any of its tensors is stored as int8 or int4 codes."""
        return any(isinstance(tensor, QuantizedWeight) for tensor in self._loaded.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it. Raises UsageError if it is missing."""
        return tuple(self.read(name).shape)

    def num_values(self) -> int:
        """Return how many numbers all tensors hold together, without reading them."""
        return sum(tensor.numel() for tensor in self._loaded.values())

    def matrix(self, name: str) -> tuple[int, int]:
        """Return a tensor's rows and columns. Raises UsageError unless it has two dimensions."""
        shape = self.shape(name)
        if len(shape) != 2:
            raise UsageError(f"{self.directory}: tensor {name} has shape {list(shape)}: need a matrix")
        return shape[0], shape[1]

    def read(self, name: str) -> Tensor:
        """Return a tensor as stored: of a mapped file, it takes memory once it is used. Raises UsageError."""
        if name not in self._places:
            raise UsageError(f"{self.directory}: lacks tensor {name}")
        return self._loaded[self._places[name][1]]

    def _find(self, candidates: tuple[str, ...]) -> dict[str, Path]:
        for name in candidates:
            if (path := self.directory / name).is_file():
                return self._shards(path) if path.suffix == ".json" else self._names_in(path)
        raise UsageError(f"{self.directory}: has neither {' nor '.join((*MODELS, *HEADS))}")

    def _shards(self, index: Path) -> dict[str, Path]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UsageError(f"{index}: has no weight_map")
        files: dict[str, Path] = {}
        for shard in dict.fromkeys(weight_map.values()):
            # A bare file name only: an index from elsewhere must not name files outside the directory.
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise UsageError(f"{index}: places tensors in {shard!r}: need a file beside it")
            files |= self._names_in(self.directory / shard)
        for name, shard in weight_map.items():
            if files.get(name) != self.directory / shard:
                raise UsageError(f"{index}: places {name} in {shard}, which does not hold it")
        return files

    def _names_in(self, path: Path) -> dict[str, Path]:
        tensors = _unpickle(path) if path.suffix != ".safetensors" else rebuild_weights(path, mapped_tensors(path))
        self._loaded |= tensors
        return dict.fromkeys(tensors, path)


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """Map a safetensors file, and return its tensors. Raises UsageError."""
    tensors = dict[str, Tensor]()
    try:
        with safe_open(path, framework="pt") as file, path.open("rb") as opened:  # the first checks the header
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)  # of a map to read alone torch warns
            _MAPS[torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()] = mapped
            start = 8 + int.from_bytes(mapped[:8], "little")
            for name, stored in parse_json(mapped[8:start], path).items():
                first, end = (start + offset for offset in stored.get("data_offsets", (0, 0)))
                dtype = _MAPPED_TYPES.get(stored.get("dtype"))
                if dtype is not None and end > first and first % dtype.itemsize == 0:
                    tensors[name] = torch.frombuffer(memoryview(mapped)[first:end], dtype=dtype).view(stored["shape"])
                elif name != "__metadata__":
                    tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a readable safetensors file ({error})") from error
    return tensors


def release(weight: Tensor) -> None:
    """Give back the memory of a weight that lies in a mapped file and that nobody has changed, until it is read."""
    for part in weight.coded.parts if isinstance(weight, QuantizedWeight) else (weight,):
        address = part.data_ptr() if type(part) in (Tensor, Parameter) else 0
        for base, mapped in list(_MAPS.items()):
            if base <= address < base + len(mapped) and hasattr(mapped, "madvise"):
                first = (address - base) // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_DONTNEED, first, address - base + part.nbytes - first)


def released(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights by name, and release each behind its use."""
    for name, weight in named:
        yield name, weight
        release(weight)


def _unpickle(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that torch.save wrote, memory-mapped where its format allows that."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickle protocols: what cannot be read raises
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle fails in any way
        raise UsageError(f"{path}: not a plain file of tensors: {_pickle_fault(error)}") from error
    pairs = value.items() if isinstance(value, dict) else [(value, None)]
    if not all(isinstance(name, str) and isinstance(item, Tensor) for name, item in pairs):
        raise UsageError(f"{path}: need a dict of tensors; save a state_dict, best with safetensors.torch.save_file")
    return dict(pairs)


def _pickle_fault(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError) and (named := re.search(r"GLOBAL (\S+)", str(error))):
        return (
            f"reading it would run code ({named[1]}), which is never done; if you trust it, convert its tensors "
            "with safetensors.torch.save_file"
        )
    reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        reason = "an unreadable pickle"  # torch's own words end in advice to read it unsafely
    return f"cut short, damaged, or not written by torch.save ({reason}); fetch it again, or convert it to safetensors"
