"""Linux system calls that Python 3.11 lacks: namespaces, a signal at the parent's death, signals as a file.

Each raises OSError with the kernel's errno. Run as a script, without the rest of this package, it executes a command
that ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Collection

CLONE_NEWNET = 0x4000_0000  # linux/sched.h
CLONE_NEWUSER = 0x1000_0000
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_TIMERSLACK = 29
PR_SET_CHILD_SUBREAPER = 36
SIGSET_BYTES = 128  # sigset_t of both C libraries
SIGNALFD_RECORD_BYTES = 128  # struct signalfd_siginfo; begins with the number, errno and code, 4 bytes each
SI_KERNEL = 0x80  # the code of a signal that no process sent, such as the terminal's Ctrl-C


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`."""
    _checked("unshare", _libc().unshare(flags))


def setns(namespace: int, flags: int) -> None:
    """Enter the namespace of a file descriptor."""
    _checked("setns", _libc().setns(namespace, flags))


def prctl(option: int, value: int) -> None:
    _checked("prctl", _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send us a signal when the thread that started us ends."""
    prctl(PR_SET_PDEATHSIG, number)
    # The parent may have ended before the call above, in which case no signal will ever come.
    if os.getppid() != parent:
        os._exit(0)


def signal_file(signals: Collection[signal.Signals]) -> int:
    """Open a file descriptor that reads one record per pending signal; block the signals first."""
    # Signal n is bit n - 1 of a sigset_t.
    mask = sum(1 << number - 1 for number in set(signals)).to_bytes(SIGSET_BYTES, sys.byteorder)
    # The flags of open, whose values differ between processors. Not a constant above: Windows has none of them.
    return _checked("signalfd", _libc().signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))


def _libc() -> ctypes.CDLL:
    # With use_errno, ctypes keeps errno per thread, safe from whatever the interpreter calls before we read it.
    return ctypes.CDLL(None, use_errno=True)


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def main() -> None:
    """Execute `FAILURE PARENT COMMAND...` with the usual signals; write the errno to FAILURE if we cannot.

    FAILURE is a descriptor, which is closed when the command begins, and PARENT a process id.
    """
    failure, parent, *argv = sys.argv[1:]
    os.set_inheritable(int(failure), False)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # which would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A mask survives exec, and our parent may have blocked what it forwards.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with_parent(signal.SIGKILL, int(parent))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(int(failure), str(error.errno).encode())


if __name__ == "__main__":
    main()
