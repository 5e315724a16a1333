"""Lets the test modules of this folder import what they share, and starts their servers as forks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from forked_server import forked_servers as forked_servers  # its folder is found only now
