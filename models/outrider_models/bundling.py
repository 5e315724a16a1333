"""Makes an edge bundle (outrider_drafters.checkpoints.bundle) from a target and a drafter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.checkpoints.bundle import DRAFTER, Bundle, find_bundle
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, select_rows, write_draft_vocab
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.options import EMBEDDING_OPTION
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights, borrowed_names, resolve_dir
from outrider_drafters.families.family import Family
from outrider_drafters.families.suffix.hybrid import COPY, COPY_OPTION, SUFFIX, SUFFIX_OPTION
from outrider_drafters.load import draft_vocabulary, load_drafter, open_drafter
from outrider_drafters.quantization.quantize import Weights, code_tensors, quantize
from outrider_drafters.readers.checkpoint import SINGLE, WRITE_ERRORS, Checkpoint
from outrider_drafters.readers.config import read_config
from outrider_proto.bundles import TARGET_FILES
from outrider_proto.errors import UsageError

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, eq=False)
class _RecordingTarget(TargetWeights):
    """A target that records how many of its last layers the drafter asks for."""

    asked: list[int] = field(default_factory=list)

    def last_layers(self, count: int) -> LastLayers:
        self.asked.append(count)
        return TargetWeights.last_layers(self, count)


def make_bundle(target: str | Path, drafter: str | Path | DrafterSource, weights: str, out: Path) -> Bundle:
    """Write the bundle to `out` and load it once as a check.

    Raises UsageError where that cannot be, also for a drafter of another target; `out` is then as it was before.
    """
    directory, source = resolve_dir(target), DrafterSource.parse(drafter)
    _check(weights, directory, out)
    target_weights = TargetWeights.load(directory)
    own = (target_weights.embed, target_weights.lm_head, target_weights.sizes, target_weights.eos_token_ids, directory)
    recording = _RecordingTarget(*own)
    # Loading tells how many of the target's layers the bundle needs: only the drafter knows.
    loaded = load_drafter(source, recording)
    family, files = open_drafter(source)
    packed = _packing(weights)
    out.mkdir(parents=True, exist_ok=True)
    try:
        tokens = draft_vocabulary(family, files, target_weights.sizes.vocab)
        _write_target(directory, max(recording.asked, default=0), packed, tokens, out)
        if family.needs_files:
            _write_drafter(files, family, packed, target_weights, tokens, out / DRAFTER)
        bundle = Bundle(
            weights=weights,
            target=Path(target).name,
            target_fingerprint=target_fingerprint(directory),
            tokenizer_fingerprint=tokenizer_fingerprint(directory),
            drafter=DRAFTER if family.needs_files else family.name,
            # The draft vocabulary is a file of the bundle: a path recorded here would be one on this machine.
            options=source.options.but(draft_vocab=None, family=family.name).given(),
            tap=asdict(loaded.tap),
            sizes=asdict(target_weights.sizes),
            made_by={package: version(package) for package in ("outrider", "torch")},
        )
        bundle.write(out)
        tap = load_drafter(out, TargetWeights.load(out)).tap
        if tap != loaded.tap:
            raise UsageError(f"{out}: the bundle's drafter wants features {tap.fingerprint}, not those of its source")
    # BaseException: a run that is interrupted must not leave half a bundle behind either.
    except BaseException as error:
        shutil.rmtree(out)
        if isinstance(error, WRITE_ERRORS):
            raise UsageError(f"{out}: the bundle cannot be written ({error}): free some space") from error
        raise
    return bundle


def _check(weights: str, target: Path, out: Path) -> None:
    if weights not in get_args(Weights):
        raise UsageError(f"--weights {weights}: choose one of {', '.join(get_args(Weights))}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: not an empty directory")
    if find_bundle(target) is not None:
        raise UsageError(f"--target {target}: a bundle itself; give the full target")


Packing = Callable[[str, Tensor], Mapping[str, Tensor]]  # a tensor's name and values -> the entries of the file


def _packing(weights: str) -> Packing:
    """Return how tensors are stored: quantized are matrices alone, and embeddings keep at least 8 bits."""

    def coded(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        # A lookup reads only one row; and where the embedding is the head too, 4 bits change one guess in eleven
        # (docs/edge.md).
        if not (name.endswith(".weight") and tensor.ndim == 2 and tensor.is_floating_point()):
            return {name: tensor}
        wide = weights == "int8" or name.endswith(EMBEDDING)
        return code_tensors(name, quantize(tensor, "int8" if wide else "int4"))

    if weights in ("int8", "int4"):
        return coded
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    return lambda name, tensor: {name: tensor.to(dtype) if tensor.is_floating_point() else tensor}


def _with_rows(packed: Packing, tokens: Sequence[int] | None, vocab: int, is_head: Callable[[str], bool]) -> Packing:
    """Return a packing that stores of every head only the rows of the draft vocabulary, in the order of ids."""
    wanted = None if tokens is None else torch.tensor(sorted(tokens))

    def cut(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        whole = tensor.shape[:1] == (vocab,) and is_head(name)
        return packed(name, select_rows(tensor, None, wanted)[0] if whole else tensor)

    return cut


def _write_target(target: Path, num_layers: int, packed: Packing, tokens: Sequence[int] | None, out: Path) -> None:
    """Write the target's small files, embedding, lm_head, and the last layers with the norm after them."""
    for pattern in TARGET_FILES:
        for path in target.glob(pattern):
            shutil.copyfile(path, out / path.name)
    config, checkpoint = read_config(target), Checkpoint(target)
    embedding, head = borrowed_names(config, checkpoint)
    stem = embedding.removesuffix(EMBEDDING)
    total = int(config["num_hidden_layers"])
    layers = tuple(f"{stem}layers.{number}." for number in range(total - num_layers, total))
    names = {embedding, head} | {name for name in checkpoint.names if layers and name.startswith(layers)}
    # A tied head keeps all rows: the embedding looks up any token.
    cut = _with_rows(packed, tokens, checkpoint.shape(head)[0], lambda name: name == head != embedding)
    _save(checkpoint, names | ({f"{stem}norm.weight"} if layers else set()), cut, out)


def _write_drafter(
    files: DrafterFiles,
    family: Family,
    packed: Packing,
    target_weights: TargetWeights,
    tokens: Sequence[int] | None,
    out: Path,
) -> None:
    """Write the drafter's tensors under their own names, without a copy of the target's embedding."""
    out.mkdir()
    config = dict(files.config)
    for key, option in ((COPY, COPY_OPTION), (SUFFIX, SUFFIX_OPTION)):
        if (chosen := files.options.get(option)) is not None:
            config[key] = chosen or None
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for extra in files.directory.glob("*.json") if files.directory.is_dir() else ():
        if extra.name not in ("config.json", DRAFT_VOCAB) and "index" not in extra.name:
            shutil.copyfile(extra, out / extra.name)
    if tokens is not None:
        write_draft_vocab(out, tokens)
    unused = files.options.get(EMBEDDING_OPTION) == "target" or _same(files.checkpoint, target_weights.embed)
    names = set(files.names) - ({EMBEDDING} if unused else set())
    kept: Packing = lambda name, tensor: {name: tensor} if family.keep_unquantized(name) else packed(name, tensor)  # noqa: E731
    _save(files.checkpoint, names, _with_rows(kept, tokens, target_weights.sizes.vocab, family.is_head), out)


def _same(checkpoint: Checkpoint, target: Tensor) -> bool:
    if EMBEDDING not in checkpoint.names:
        return False
    own = checkpoint.read(EMBEDDING)
    return own.shape == target.shape and torch.equal(own.to(target), target)


def _save(checkpoint: Checkpoint, names: set[str], packed: Packing, out: Path) -> None:
    tensors: dict[str, Tensor] = {}
    for name in sorted(names):
        tensors |= packed(name, checkpoint.read(name))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / SINGLE, metadata={"format": "pt"})


def weights_note(out: Path, bundle: Bundle) -> str:
    """Say how the weights are stored, and where that is not what was asked for."""
    if bundle.weights != "int4":
        return bundle.weights
    embedding, head = borrowed_names(read_config(out), Checkpoint(out))
    return "int4 (the embedding, which is the head too, int8)" if embedding == head else "int4 (the embedding int8)"


def size_bytes(bundle: Path) -> int:
    """Return the size of all files of a bundle."""
    return sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
