"""How many bytes rows may take, counted where they are taken and given back. Knows no tensors."""

from __future__ import annotations


class OutOfRoom(Exception):
    """There is no room for so many bytes now. Nothing has changed; ask again when somebody has ended."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"no room for {num_bytes} bytes of K/V")
        self.num_bytes = num_bytes


class Budget:
    """Bytes in use, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def take(self, num_bytes: int) -> None:
        """Raises OutOfRoom."""
        if num_bytes > self.free_bytes:
            raise OutOfRoom(num_bytes)
        self.used_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Back what was taken."""
        assert 0 <= num_bytes <= self.used_bytes
        self.used_bytes -= num_bytes
