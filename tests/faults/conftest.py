"""Lets the test modules of this folder import what they share, and the server tests' client."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "server")]
