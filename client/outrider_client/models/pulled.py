"""Directories of pulled edge bundles: one for each server, in the user's data directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from platformdirs import user_data_path

from outrider_drafters.checkpoints.bundle import MANIFEST


def pulled_dir(server: str) -> Path:
    """Return the directory for a server (HOST:PORT), whether or not anything was pulled from it."""
    host, _, port = server.rpartition(":")
    return user_data_path("outrider", appauthor=False) / "bundles" / f"{quote(host, safe='')}_{quote(port, safe='')}"


def find_pulled(server: str) -> Path | None:
    """Return the directory of the bundle that was pulled from a server; None if there is none."""
    directory = pulled_dir(server)
    return directory if (directory / MANIFEST).is_file() else None
