"""Families that installed packages add, by entry points. Nothing of a package is imported before its family is needed.

An entry's name is that of its family. A package that is broken, or that takes a name which is not free, costs one
warning and its own families; only for a family that was asked for by name it is an error.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from outrider_proto.errors import OutriderError, UsageError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class PlugIns(Generic[T]):
    """The families of one entry-point group, objects of type `kind` with a `name`; `own` returns Outrider's names."""

    def __init__(self, group: str, kind: type[T], own: Callable[[], Iterable[str]]) -> None:
        self.group = group
        self._kind = kind
        self._own = own
        self._once = cache(self._load)
        self._warned: set[str] = set()

    @cached_property
    def _entries(self) -> dict[str, list[EntryPoint]]:
        found = defaultdict(list)
        for entry in entry_points(group=self.group):
            found[entry.name].append(entry)
        return dict(sorted(found.items()))

    @property
    def names(self) -> list[str]:
        """The names of all families that packages add, in order; one that is no family after all is among them."""
        return [name for name in self._entries if name not in self._own()]

    def package(self, name: str) -> str:
        """Return the package of a family, or the packages that want its name, for messages."""
        packages = [entry.dist for entry in self._entries[name]]
        return " and ".join("?" if package is None else f"{package.name} {package.version}" for package in packages)

    def get(self, name: str) -> T | None:
        """Return the family of that name; None if no package adds it. Raises UsageError for a broken one."""
        found = self._once(name) if name in self.names else None
        if isinstance(found, UsageError):
            raise found
        return found

    def usable(self) -> list[T]:
        """Return all families that can be used, in order of their names; warn once of each other one."""
        found: list[T] = []
        for name in self._entries:
            if name in self._own():
                self._warn(name, f"{self._place(name)}: the name is that of a family of Outrider: not used")
                continue
            try:
                family = self.get(name)
            except UsageError as error:
                self._warn(name, f"{error}: not used")
            else:
                found += [] if family is None else [family]
        return found

    @contextmanager
    def tolerating(self, name: str) -> Iterator[None]:
        """Turn an exception in a package's code into a warning; for a family of Outrider do nothing."""
        try:
            with self.blaming(name):
                yield
        except UsageError as error:
            if name not in self.names:
                raise
            self._warn(name, f"{error}: not used")

    @contextmanager
    def blaming(self, name: str) -> Iterator[None]:
        """Turn an exception in a package's code into a UsageError; for a family of Outrider do nothing."""
        try:
            yield
        except OutriderError:
            raise
        except Exception as error:
            if name not in self.names:
                raise
            raise UsageError(f"{self._place(name)}: {_spelled(error)}") from error

    def _load(self, name: str) -> T | UsageError:
        entry, *others = self._entries[name]
        if others:
            return UsageError(f"{self._place(name)}: only one may have this name, uninstall the others")
        try:
            family = entry.load()
        # SystemExit too: a module that ends the program when it is imported must not end this one.
        except (Exception, SystemExit) as error:
            return UsageError(f"{self._place(name)}: cannot be loaded ({_spelled(error)})")
        if not isinstance(family, self._kind):
            found, need = type(family).__name__, self._kind.__name__
            return UsageError(f"{self._place(name)}: {entry.value} is of type {found}: need {need}")
        if (called := getattr(family, "name", None)) != name:
            return UsageError(f"{self._place(name)}: {entry.value} is called {called}: need the entry point's name")
        return family

    def _place(self, name: str) -> str:
        return f"family {name} of package {self.package(name)}"

    def _warn(self, name: str, message: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(message)


def _spelled(error: BaseException) -> str:
    """Return an exception's type and message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
