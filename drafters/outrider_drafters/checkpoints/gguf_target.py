"""Targets in GGUF files: dequantized once, into a Hugging Face directory in the user's cache folder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outrider_drafters.readers.checkpoint import WRITE_ERRORS
from outrider_drafters.readers.config import read_json
from outrider_drafters.readers.gguf_file import read_summary
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Report = Callable[[float], None]
_logger = logging.getLogger(__name__)
_VERSION = 1  # of what is written: another number, and every file is dequantized anew
_FLOAT32_PARAMETERS = 2**30  # a larger model is stored as bfloat16, which takes half the disk
_SPARE_BYTES = 64 * 2**20  # for the tokenizer, and for a disk that is never quite empty
_TENSORS_FROM, _TENSORS_TO = 0.4, 0.7  # shares of the work before and after the tensors (measured on smollm2)
_CHAT_ENDS = ("eot_token_id", "eom_token_id")  # of the tokenizer's metadata, beside its eos


def dequantized_dir(path: Path) -> Path:
    """Return the directory made of a GGUF file, and make it at the first use of that file. Raises UsageError."""
    from platformdirs import user_cache_path

    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {_VERSION}"
    name = f"{path.stem}-{blake2b(key.encode(), digest_size=8).hexdigest()}"
    directory = user_cache_path("outrider", appauthor=False) / "targets" / name
    dequantize_target(path, directory)
    return directory


def dequantize_target(path: Path, directory: Path, report: Report | None = None) -> None:
    """Write the model, tokenizer and chat template of a GGUF file to `directory`, whole or not at all.

    `report` gets the share that is done; without it transformers draws a bar. Nothing happens where the directory
    exists. Weights become float32, from 2**30 parameters on bfloat16. Raises UsageError for a file that is broken, of
    an architecture that transformers cannot read from GGUF, or too large for the disk.
    """
    from filelock import FileLock

    partial = directory.with_name(f"{directory.name}.partial")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f"{directory.name}.lock")):
            if directory.is_dir():
                return
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            try:
                _write(path, partial, report)
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except WRITE_ERRORS as error:
        raise UsageError(f"{directory}: {getattr(error, 'strerror', None) or error}") from error


def _write(path: Path, directory: Path, report: Report | None) -> None:
    metadata, count = read_summary(path)
    dtype = torch.float32 if count < _FLOAT32_PARAMETERS else torch.bfloat16
    needed, free = count * dtype.itemsize + _SPARE_BYTES, shutil.disk_usage(directory.parent).free
    if free < needed:
        raise UsageError(f"{path}: dequantized it takes {needed:,} bytes; {directory.parent} has {free:,} left")
    _logger.info("%s: dequantizing into %s, once", path, directory.parent)
    model, tokenizer = _loaded(path, dtype, report)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    _mend_floats(directory / "config.json")
    _add_chat_ends(directory / "generation_config.json", metadata)
    if report is not None:
        report(1.0)


def _loaded(
    path: Path, dtype: torch.dtype, report: Report | None
) -> tuple[PreTrainedModel, Any]:  # Any: tokenizers share no annotated base
    try:
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise UsageError(f"{path}: GGUF targets need transformers: pip install 'outrider[gguf]'") from error
    from transformers.utils import logging as transformers_logging

    # Older versions dequantize always, and have no such class.
    config = getattr(transformers, "GgufConfig", None)
    options = {} if config is None else {"quantization_config": config(dequantize=True)}
    file: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}  # Any: arguments of from_pretrained
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers'
    try:
        with nullcontext() if report is None else _reported_tensors(report):
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), **file, **options, dtype=dtype)
        return model, AutoTokenizer.from_pretrained(str(path.parent), **file)
    except Exception as error:  # transformers trusts the file and fails on bad ones in many ways
        raise UsageError(f"{path}: not a GGUF file that transformers can read ({error})") from error


@contextmanager
def _reported_tensors(report: Report) -> Iterator[None]:
    """Let transformers report each tensor that it has dequantized, in place of the bar that it draws."""
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")  # Any: what we replace is not its face

    def reported(tensors: Sequence[object], **_: object) -> Iterator[object]:
        for number, tensor in enumerate(tensors):
            report(_TENSORS_FROM + (_TENSORS_TO - _TENSORS_FROM) * number / len(tensors))
            yield tensor

    bar = reader.tqdm
    reader.tqdm = reported  # it has no setting for this: it draws on any terminal, across our own lines
    try:
        yield
    finally:
        reader.tqdm = bar


def _mend_floats(path: Path) -> None:
    """Turn the float32 of GGUF's metadata into the decimals that they were written from."""

    # Without this, eps is 9.999999747e-06 rather than 1e-5, and logits differ from those of the published model.
    def mended(value: object) -> object:
        if isinstance(value, dict):
            return {key: mended(item) for key, item in value.items()}
        return float(str(np.float32(value))) if isinstance(value, float) else value

    path.write_text(json.dumps(mended(read_json(path)), indent=2) + "\n")


def _add_chat_ends(path: Path, metadata: Mapping[str, Any]) -> None:  # Any: GGUF's values have many types
    """Let answers end where a turn ends, too: many files name that token apart from their eos."""
    config = read_json(path)
    eos = config.get("eos_token_id")
    ends = [*(eos if isinstance(eos, list) else [] if eos is None else [eos])]
    ends += [end for key in _CHAT_ENDS if (end := metadata.get(f"tokenizer.ggml.{key}")) not in (None, *ends)]
    path.write_text(json.dumps({**config, "eos_token_id": ends[0] if len(ends) == 1 else ends}, indent=2) + "\n")
