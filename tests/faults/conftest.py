"""Lets the test modules of this folder import what they share, and from the server's and the client's tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server"), str(HERE.parent / "client")]
