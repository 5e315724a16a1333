"""The entry of the `outrider` command: imports it with Ctrl-C under control."""

from __future__ import annotations

from outrider_client.cli.interrupts import leave_on_interrupt


def main() -> None:
    leave_on_interrupt()
    from outrider_client.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
