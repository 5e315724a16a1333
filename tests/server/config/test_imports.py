"""The configuration alone imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "grpc", "numpy", "prometheus_client", "cryptography", "opentelemetry", "ray")


def test_a_configuration_loads_nothing_heavy():
    program = f"""
import sys, outrider_server
outrider_server.load_config(None, {{"target": "x"}})
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
