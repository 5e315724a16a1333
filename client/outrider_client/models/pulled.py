"""Where pulled edge bundles lie: one directory for each server, in the user's data directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from platformdirs import user_data_path

from outrider_drafters.checkpoints.bundle import MANIFEST


def pulled_dir(server: str) -> Path:
    """For the server's HOST:PORT, whether or not anything was pulled from there."""
    host, _, port = server.rpartition(":")
    return user_data_path("outrider", appauthor=False) / "bundles" / f"{quote(host, safe='')}_{quote(port, safe='')}"


def find_pulled(server: str) -> Path | None:
    """The bundle that was pulled from a server, if one was."""
    directory = pulled_dir(server)
    return directory if (directory / MANIFEST).is_file() else None
