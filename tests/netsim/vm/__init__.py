"""A real Debian kernel under qemu, in which a script measures the kernel engine.

    host                                          guest (TCG, one CPU, 512 MB, no disk, no network card)
    kernel package + busybox + Python  --image--> /init: mounts, modules, lo --> runner: script.main(arguments) --+
    script.py, netsim, arguments, seed --image-^                                                                  |
    result  <----------------------------------- second serial port, JSON <---------------------------------------+

`script.py` runs as root, can import `outrider_netsim`, `outrider_proto` and pyroute2, and takes and returns JSON; what
it prints is the console's tail of an error. The guest's clock counts instructions (see machine.py): its measurements do
not see the host's load.
"""

from vm.guest import GuestError, measured_in_guest
from vm.prerequisites import missing

__all__ = ["GuestError", "measured_in_guest", "missing"]
