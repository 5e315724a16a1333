"""The lab's tests start servers as those of bench do, and share their files of the same kind."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "bench"))

from forked_server import forked_servers as forked_servers  # its folder is found only now
