"""Where fetched and built things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/outrider-netsim-vm` where that is set, else `.cache/netsim-vm` here; made if need be."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = Path(home) / "outrider-netsim-vm" if home else REPOSITORY / ".cache" / "netsim-vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
