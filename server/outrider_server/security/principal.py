"""A caller's identity, scopes and quota."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider_server.config.config import at_least


class Scope(Enum):
    """One thing a key may allow."""

    SESSION = "session"  # have drafts verified
    SERVER_DRAFT = "server-draft"  # have the server draft, at its cost
    BUNDLE = "bundle"  # fetch edge bundles
    DESCRIBE = "describe"  # ask what the server hosts


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a key; None: only the server's own. Raises UsageError.

    `tokens_per_minute` counts rows of the target: context, drafted nodes and decoded tokens.
    """

    sessions: int | None = None
    tokens_per_minute: int | None = None
    max_context: int | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "sessions", "tokens_per_minute")
        at_least(self, 2, "max_context")


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `payer` is the account, empty without keys; `digest` is the key's; `address` is that of a caller without an account,
    empty on this machine.
    """

    payer: str = ""
    scopes: frozenset[Scope] = ALL_SCOPES
    quota: Quota = Quota()
    digest: bytes = field(default=b"", repr=False)
    address: str = ""

    @property
    def holder(self) -> str:
        """Whom its sessions count for: the account, or else the address."""
        return self.payer or self.address

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


NO_QUOTA = Quota()
ANONYMOUS = Principal()
