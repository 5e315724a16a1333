"""Lets the tests of this folder import `vm`, the guest with a real kernel."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
