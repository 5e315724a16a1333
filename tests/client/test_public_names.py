"""The public face of the client: every name loads, and importing the package alone stays cheap."""

from __future__ import annotations

import subprocess
import sys

import outrider_client

HEAVY = ("torch", "transformers", "grpc", "numpy", "scipy", "matplotlib", "presidio_analyzer")


def test_every_public_name_loads():
    assert all(getattr(outrider_client, name) is not None for name in outrider_client.__all__)


def test_importing_the_package_loads_nothing_heavy():
    check = f"import sys, outrider_client; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
