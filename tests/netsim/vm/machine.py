"""The emulated machine, and why its clock does not see the host's load.

`-icount shift=0,sleep=off`: the guest's time is the count of its instructions, 1 ns each, and jumps to the next timer
when it has nothing to do. So a delay of 30 ms is 30 ms in the guest however slow or busy the host is, the guest is
always a processor of 10^9 instructions a second, and waiting costs nothing: the discrete-event simulation of a real
kernel. All else that could differ between two runs is fixed too (date, one CPU, no source of randomness but the seed in
the image, see runner.py): the same image gave the same nanoseconds and the same /dev/urandom in two boots, so a test
that passed passes until the kernel, Python, qemu, the code or the seed change. KVM is never used: it has no such clock.
"""

from __future__ import annotations

from pathlib import Path

CPU = "Nehalem"  # a third quicker to emulate than `max`: the C library finds no AVX to use
MEMORY_MB = 512
NANOSECONDS_AN_INSTRUCTION_LOG2 = 0


def command(kernel_image: Path, initramfs: Path, console: Path, result: Path) -> list[str]:
    """qemu's command line: the console and the result are files, there is neither disk nor network card nor display."""
    kernel_line = "console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off"
    return [
        "qemu-system-x86_64",
        *("-accel", "tcg,thread=single", "-cpu", CPU, "-smp", "1", "-m", str(MEMORY_MB)),
        *("-icount", f"shift={NANOSECONDS_AN_INSTRUCTION_LOG2},sleep=off"),
        *("-rtc", "base=2024-01-01,clock=vm", "-seed", "1"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"),
        *("-serial", f"file:{console}", "-serial", f"file:{result}"),
        *("-kernel", str(kernel_image), "-initrd", str(initramfs), "-append", kernel_line),
    ]
