"""A real Debian kernel under qemu: `run_in_guest(script, arguments, timeout_s)` gives what the script's `main` gave.

    host                                          guest (TCG, one CPU, 512 MB, no disk, no network card)
    kernel package + busybox + Python  --image--> /init: mounts, modules, lo --> runner: main(arguments) --+
    this package's guest_*.py, netsim  --overlay-^                                                         |
    result  <----------------------------------- second serial port, JSON <--------------------------------+

A script is a file with `def main(arguments: dict) -> dict`, both JSON, best a `guest_*.py` of this folder. It runs as
root, can import `outrider_netsim`, pyroute2, typer, rich and its neighbors here; what it prints is the console's tail
of an error. Tests marked `guest` share one boot (see batch.py). The guest's clock counts instructions (see machine.py):
its measurements do not see the host's load.
"""

from vm.batch import check_in_guest, result_in_guest
from vm.guest import GuestError, run_in_guest
from vm.prerequisites import missing

__all__ = ["GuestError", "check_in_guest", "missing", "result_in_guest", "run_in_guest"]
