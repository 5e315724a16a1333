"""`async with` for whatever is started and closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """Starts on entering, closes on leaving."""

    @abstractmethod
    async def start(self) -> object: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Safe to call twice."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
