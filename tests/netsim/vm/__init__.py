"""A real Debian kernel under qemu, booted once for all tests marked `guest`.

    host                                          guest (TCG, one CPU, 512 MB, no disk, no network card)
    kernel package + busybox + Python  --image--> /init: mounts, modules, lo --> runner: main(arguments) --+
    this package's guest_*.py, netsim  --overlay-^                                                         |
    result  <----------------------------------- second serial port, JSON <--------------------------------+

A script is a `guest_*.py` of this folder with `def main(arguments: dict) -> dict`, both JSON. It runs as root, can
import `outrider_netsim`, pyroute2 and its neighbors here; what it prints is the console's tail of an error. The guest's
clock counts instructions (see machine.py): its measurements do not see the host's load.
"""

from vm.batch import check_in_guest
from vm.prerequisites import missing

__all__ = ["check_in_guest", "missing"]
