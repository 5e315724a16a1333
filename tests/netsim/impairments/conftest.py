"""Let the test modules of this folder import shared helpers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
