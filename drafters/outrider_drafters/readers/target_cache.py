"""The user's cache of targets made of other files: dequantized GGUF files, and int8 codes.

Each is a directory NAME-HASH-DTYPE that tells its source; its own time is that of its last use. Those whose source has
changed or is gone go when the next is written, then the least recently used beyond half of what other files leave free.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters.quantization.quantize import coded_names, dtype_name, int8_tensors, tied_names
from outrider_drafters.readers import checkpoint
from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.digest import weights_digest
from outrider_drafters.readers.gguf_file import part_names
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SOURCE = "outrider_source.txt"
DIGESTS = "outrider_digests.json"  # of the weights in each file
_SHARD_BYTES = 2**28  # of tensors in memory at a time
_SPARE_BYTES = 64 * 2**20  # for the tokenizer, and for a disk that is never quite empty
_VERSION = 4  # of what is written: another number, and every target is written anew
_NAME = re.compile(r".+-[0-9a-f]{16}-(\w+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedTarget:
    """`source`: None where an earlier version has written it, until it is used."""

    directory: Path
    dtype: str
    source: Path | None
    used_at: float  # seconds since 1970
    size_bytes: int

    @classmethod
    def at(cls, directory: Path, dtype: str) -> CachedTarget:
        """Look at a directory. Raises OSError."""
        size_bytes = sum(path.stat().st_size for path in directory.iterdir())
        path = directory / SOURCE
        source = Path(path.read_text()) if path.is_file() else None
        return cls(directory, dtype, source, directory.stat().st_mtime, size_bytes)

    @property
    def is_stale(self) -> bool:
        """Return whether nobody asks for it any more, since its source has changed or is gone."""
        try:
            return self.source is not None and cached_dir(self.source, self.dtype) != self.directory
        except OSError:
            return True

    @property
    def is_open(self) -> bool:
        """Return whether a process has files of it mapped, as far as this one can see (Linux)."""
        place = f" {self.directory.resolve()}{os.sep}"
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):  # of another user, or at its end
                if place in maps.read_text(errors="replace"):
                    return True
        return False

    def remove(self) -> None:
        """Raise UsageError for one that is in use or cannot be removed."""
        from filelock import FileLock

        if self.is_open:
            raise UsageError(f"{self.directory.name}: a running process has it open; stop that first")
        partial = _partial(self.directory)
        try:
            with FileLock(_lock(self.directory)):
                self.directory.rename(partial)  # whoever looks sees it whole or not at all
                shutil.rmtree(partial)
        except OSError as error:
            raise UsageError(f"{self.directory}: {error.strerror or error}") from error


def cached_targets() -> Iterator[CachedTarget]:
    """Yield what the cache holds, by name."""
    for directory in sorted(_root().glob("*")):
        if (name := _NAME.fullmatch(directory.name)) is None:
            continue
        with suppress(OSError):  # it is being removed
            yield CachedTarget.at(directory, name[1])


def beyond(targets: Iterable[CachedTarget], most_bytes: int) -> Iterator[CachedTarget]:
    """Yield those to remove, the least recently used first, so that the others take no more than `most_bytes`."""
    by_use = sorted(targets, key=lambda target: target.used_at)
    total = sum(target.size_bytes for target in by_use)
    for target in by_use:
        if total > most_bytes and not target.is_open:
            total -= target.size_bytes
            yield target


def cached_dir(source: Path, kind: str) -> Path:
    """Return where the target that is made of a source as it is now, and as that dtype, has its place."""
    stats = [file.stat() for file in source_files(source)]
    key = f"{source.resolve()} {[(stat.st_size, stat.st_mtime_ns) for stat in stats]} {_VERSION}"
    return _root() / f"{source.stem}-{blake2b(key.encode(), digest_size=8).hexdigest()}-{kind}"


def source_files(source: Path) -> list[Path]:
    """Return the files of a directory, or all parts of a GGUF file."""
    if source.is_dir():
        return sorted(path for path in source.iterdir() if path.is_file())
    return [part for part in part_names(source) if part.is_file()] or [source]


def write_cached(source: Path, kind: str, write: Callable[[Path], None]) -> Path:
    """Return the directory made of a source, which `write` fills at the first use. Raises UsageError."""
    directory = cached_dir(source, kind)
    is_new = not directory.is_dir()
    if is_new:
        _remove(target for target in cached_targets() if target.is_stale)
        _write_once(directory, write)
    with suppress(OSError):  # a cache that came with an image may be read-only
        if not (directory / SOURCE).is_file():
            (directory / SOURCE).write_text(str(source.absolute()))
        os.utime(directory)
    if is_new:
        targets, free = list(cached_targets()), shutil.disk_usage(directory).free
        # The larger the disk, the more; and a disk that others fill gets some back.
        most = (free + sum(target.size_bytes for target in targets)) // 2
        _remove(target for target in beyond(targets, most) if target.directory != directory)
    return directory


def _write_once(directory: Path, write: Callable[[Path], None]) -> None:
    """Have a directory written, whole or not at all, unless it exists. Raises UsageError."""
    from filelock import FileLock

    partial = _partial(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_lock(directory)):
            if directory.is_dir():
                return
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            try:
                write(partial)
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except checkpoint.WRITE_ERRORS as error:
        raise UsageError(f"{directory}: {getattr(error, 'strerror', None) or error}") from error


def write_weights(
    directory: Path,
    source: Path,
    model: PreTrainedModel,
    read: Callable[[str], Tensor],
    dtype: torch.dtype,
) -> None:
    """Make a directory of a model's config and weights, of which memory holds one shard at a time. Raises UsageError.

    `model`: on the meta device. On a terminal there is a bar.
    """
    from huggingface_hub import split_torch_state_dict_into_shards
    from huggingface_hub.constants import SAFETENSORS_INDEX_FILE
    from tqdm import tqdm  # type: ignore[import-untyped] # has no annotations

    empty = {name: tensor.to(dtype) for name, tensor in model.state_dict().items() if name not in tied_names(model)}
    count = sum(tensor.numel() for tensor in empty.values())
    ends: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[no-untyped-call] # transformers
    exact = [name for name, each in model.named_parameters() if any(each is end.weight for end in ends)]
    needed, free = count * dtype.itemsize + _SPARE_BYTES, shutil.disk_usage(directory.parent).free
    if free < needed:
        raise UsageError(
            f"{source}: as {dtype_name(dtype)} it takes {needed:,} bytes; {directory.parent} has {free:,} left"
            " (`outrider-models info` lists what you may remove)"
        )
    coded, plain = (frozenset[str](), dtype) if dtype.is_floating_point else (coded_names(model), torch.float32)
    _log.info("%s: writing it as %s into %s, once", source, dtype_name(dtype), directory.parent)
    directory.mkdir()
    model.config.architectures, model.config.dtype = [type(model).__name__], plain
    model.config.save_pretrained(directory)
    digests, rows = dict[str, str](), dict[str, Tensor]()
    shards = split_torch_state_dict_into_shards(empty, max_shard_size=_SHARD_BYTES)
    # disable=None: no bar unless on a terminal.
    with tqdm(total=count, desc=source.name, unit="", unit_scale=True, disable=None) as bar:
        for shard, names in shards.filename_to_tensors.items():
            tensors: dict[str, Tensor] = {}
            for name, values in checkpoint.released((name, read(name)) for name in names):
                checkpoint.need_finite(source, [(name, values)])
                if name in exact:
                    rows[name] = checkpoint.sampled_rows(values).float().clone()  # not a view, which would keep it all
                tensors |= int8_tensors(name, values) if name in coded else {name: values.to(plain).contiguous()}
                bar.update(values.numel())
            save_file(tensors, directory / shard, metadata={"format": "pt"})
            digests[shard] = weights_digest({}, sorted(tensors.items()))
    (directory / DIGESTS).write_text(json.dumps(digests, indent=2) + "\n")
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (directory / SAFETENSORS_INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
    if dtype != torch.float32:
        rows |= checkpoint.read_exact_rows(source)  # which may be rounded itself
        save_file(rows, directory / checkpoint.ROWS)


def is_cached(directory: Path) -> bool:
    """Return whether a directory is one of the cache, and no copy that somebody has made of it."""
    return directory.resolve().parent == _root().resolve() and (directory / DIGESTS).is_file()


def check_written(directory: Path) -> None:
    """Raise UsageError, and remove the directory, where one of this cache does not hold what was written."""
    for name, digest in (read_json(directory / DIGESTS) if is_cached(directory) else {}).items():
        try:
            found = checkpoint.mapped_tensors(directory / name)
            is_whole = weights_digest({}, checkpoint.released(sorted(found.items()))) == digest
        except UsageError:
            is_whole = False
        if not is_whole:
            shutil.rmtree(directory, ignore_errors=True)
            raise UsageError(f"{directory / name} is not what was written: it is removed; start again to make it anew")


def _remove(targets: Iterable[CachedTarget]) -> None:
    for target in targets:
        with suppress(UsageError):  # in use, or another process is quicker
            target.remove()
            _log.info("%s: removed from the cache, %s bytes", target.directory, f"{target.size_bytes:,}")


def _root() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("outrider", appauthor=False) / "targets"


def _partial(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.partial")


def _lock(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")
