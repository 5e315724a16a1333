"""Directories of the models that ship in the package: a target and its drafters, and drafters for targets by name.

`moa` is a drafter for the embedded target, `smollm2/moa` one for the target that `outrider-models get smollm2`
installs, and `smollm2` the best of these.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from outrider_drafters.checkpoints.catalog import catalog, installed_file, is_installed
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

_ROOT = Path(__file__).parents[1] / "embedded"
EMBEDDED = "embedded"  # name of the embedded target, for those who have another one installed
PAIR = ("moa", "eagle2")  # equal in size and training: the two that are compared by default
DRAFTERS = (
    *PAIR, "moa_tli1", "eagle3", "dspark", "medusa", "hydra", "independent", "eagle2_math", "eagle2_chat",
    "eagle2_late", "dspark_late",
)  # fmt: skip


# Mean log probability that the target gives a token that a drafter writes without it: after 24 of the target's own, and
# from the start (docs/results/quality.md). The target's own text has -0.7, and below -2 nobody would call it sensible.
_WRITING = {
    "moa": (-0.19, -3.39), "moa_tli1": (-0.17, -3.32), "independent": (-1.08, -1.79), "eagle2_late": (-0.81, -9.56),
    "dspark_late": (-1.03, -7.37), "eagle2": (-3.66, -3.22), "eagle3": (-4.04, -11.33), "dspark": (-3.75, -8.64),
    "smollm2/independent": (-3.07, -2.55), "smollm2/moa": (-2.86, -4.24), "smollm2/eagle2": (-2.86, -5.78),
    "smollm2/eagle3": (-5.35, -6.44),
}  # fmt: skip
_SENSIBLE = -2.0
Writes = Literal["alone", "after the target", "no"]


def measured_writing(drafter: str | Path, target: str | Path | None) -> Writes | None:
    """Return what a drafter that ships may write without its target; None if that was not measured."""
    name = str(drafter).removeprefix(f"{_ROOT}{os.sep}").partition(",")[0]
    name = catalog()[name].drafter if name in catalog() else name
    if name not in _WRITING or ("/" not in name and not _is_embedded(target)):
        return None
    after, alone = _WRITING[name]
    return "alone" if min(after, alone) >= _SENSIBLE else "after the target" if after >= _SENSIBLE else "no"


def measured_writer(target: str | Path | None) -> Path | None:
    """Return the directory of the drafter that ships for a target and writes alone; None if there is none."""
    prefix = "" if _is_embedded(target) else f"{target}/"
    own = (name for name in _WRITING if name == prefix + name.rpartition("/")[2])
    return next((drafter_dir(name) for name in own if measured_writing(name, target) == "alone"), None)


def _is_embedded(target: str | Path | None) -> bool:
    return target is None or str(target) in (EMBEDDED, str(target_dir()))


def target_dir() -> Path:
    """Return the directory of the embedded target and its tokenizer."""
    return _ROOT / "target"


def shipped_drafters(target: str | Path | None = None) -> tuple[str, ...]:
    """Return the names of the drafters that ship for a target, the best first; for most targets there are none.

    `target` is what --target takes, None the embedded one. Raises UsageError for one that cannot be read.
    """
    if target is None or target == EMBEDDED:
        return DRAFTERS
    if str(target) in catalog():
        return _drafters_by_name(str(target))
    from outrider_drafters.checkpoints.fingerprint import TARGET_FINGERPRINT_KEY, target_fingerprint

    fingerprint = target_fingerprint(target)
    made_for_it = (
        names
        for names in (DRAFTERS, *map(_drafters_by_name, catalog()))
        if names and read_json(drafter_dir(names[0]) / "config.json").get(TARGET_FINGERPRINT_KEY) == fingerprint
    )
    return next(made_for_it, ())


def drafter_dir(name: str) -> Path:
    """Return the directory of a drafter that ships, or an installed file. Raises UsageError for an unknown name."""
    if (target := name.partition("/")[0]) in catalog():
        names = _drafters_by_name(target)
        if name == target and not names and is_installed(name):  # the model itself, as an independent drafter
            return installed_file(name)
        if not names:
            raise UsageError(f"drafter {name!r}: none ships for {target}: --drafter lookup needs no weights")
        if name not in (target, *names):
            raise UsageError(f"drafter {name!r}: those for {target} are {', '.join(names)}")
        return _ROOT / (names[0] if name == target else name)
    if name not in DRAFTERS:
        raise UsageError(f"drafter {name!r}: the embedded ones are {', '.join(DRAFTERS)}")
    return _ROOT / name


def target_source(name: str | Path | None) -> str | Path:
    """Return the embedded target's directory for None and `embedded`, and any other source as it is."""
    return target_dir() if name is None or name == EMBEDDED else name


def drafter_source(text: str, target: str | Path | None = None) -> str:
    """Replace the name of a drafter that ships by its directory in a drafter source such as `smollm2/moa,tli=1`.

    Names without a slash count for the embedded target only. Raises UsageError for an unknown one of the catalog.
    """
    name, comma, options = text.partition(",")
    if name.partition("/")[0] in catalog() or ((target is None or target == EMBEDDED) and name in DRAFTERS):
        return f"{drafter_dir(name)}{comma}{options}"
    return text


def default_target(drafters: Iterable[str] = ()) -> str:
    """Return the target to use where none is given: that of the drafters, else one that is installed or embedded."""
    names = [source.partition(",")[0] for source in drafters]
    for name in names:
        if (target := name.partition("/")[0]) in catalog():
            return target
        if name in DRAFTERS:
            return EMBEDDED
    return next((name for name in catalog() if is_installed(name)), EMBEDDED)


def _drafters_by_name(target: str) -> tuple[str, ...]:
    """Return the names of the drafters that ship for a target of the catalog, the best first."""
    found = sorted(f"{target}/{path.parent.name}" for path in (_ROOT / target).glob("*/config.json"))
    best = catalog()[target].drafter
    return tuple(sorted(found, key=lambda name: name != best))


def model_dirs() -> dict[str, Path]:
    """Return the directory of every embedded model that is present, by name."""
    named = {"target": target_dir(), **{name: drafter_dir(name) for name in DRAFTERS}}
    return {name: path for name, path in named.items() if (path / "config.json").is_file()}
