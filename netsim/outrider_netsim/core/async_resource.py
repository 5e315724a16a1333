"""`async with` for everything that is started and closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncResource(ABC):
    """Base of classes with `start` and `aclose`: `async with` starts on entering and closes on leaving."""

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
