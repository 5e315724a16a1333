"""Lets the tests of these folders import `vm`, the guest with a real kernel, and what they share."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "tcp"), str(HERE / "impairments")]
