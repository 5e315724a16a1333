"""Files that `outrider pull` brings from a server, as the client then reads them."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from fuzz_targets.target import FuzzTarget, by_length
from outrider_client.pull.partial_bundle import check_bundle
from outrider_drafters.checkpoints import bundle as edge
from outrider_proto.bundles import BundleFile, BundleManifest
from outrider_proto.errors import Refusal, UsageError

_DIGESTED = 512 * 1024  # of a file at once, and what hashlib holds beside it


@cache
def _folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"outrider-fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _manifest() -> BundleManifest:
    for name in ("config.json", "model.safetensors"):
        (_folder("bundle") / name).write_bytes(b"{}")
    files = tuple(BundleFile(name, 2, bytes(32)) for name in ("bundle.json", "config.json", "model.safetensors"))
    return BundleManifest("t", "ab", "cd", "tap", "lookup", "int8", files)


def _write_bundle(data: bytes) -> Path:
    _manifest()
    (_folder("bundle") / edge.MANIFEST).write_bytes(data)
    edge._checked.cache_clear()  # files change faster here than the clock by which it knows them
    return _folder("bundle")


def _bundle(folder: Path) -> None:
    check_bundle(folder, _manifest())


def _bundle_seeds() -> dict[str, bytes]:
    _manifest()
    tap = {"fingerprint": "tap", "family": "lookup", "width": 0}
    told = edge.Bundle(
        "int8", "t", "ab", "cd", "lookup", {"ngram": 3, "target_layers": [1, 2]}, tap, {}, {"by": "test"}
    )
    path = _folder("bundle") / edge.MANIFEST
    path.unlink(missing_ok=True)
    told.write(_folder("bundle"))
    whole = json.loads(path.read_bytes())
    several = {
        "whole": whole,
        "listed-drafter": whole | {"drafter": ["drafter"]},
        "no-options": whole | {"options": []},
        "strange-options": whole | {"options": {"tli": "a", "rope_theta": -1}},
        "strange-files": whole | {"files": {"../x": {"size_bytes": 1, "blake2b": ""}, "\0": 1}},
        "strange-marks": whole | {"files": {"config.json": {"size_bytes": "2", "blake2b": 3}}},
        "no-tap": whole | {"tap": None},
        "newer": whole | {"version": 2},
    }
    seeds = {name: json.dumps(one).encode() for name, one in several.items()}
    return seeds | {"deep": b"[" * 3000, "no-json": b"{", "number": b"1e999"}


def _bundle_bound(data: bytes) -> int:
    return by_length(data) + _DIGESTED


_REFUSALS = (Refusal, UsageError)
TARGETS = (
    FuzzTarget("bundle-file", _bundle, _bundle_seeds, refusals=_REFUSALS, bound=_bundle_bound, prepare=_write_bundle),
)
