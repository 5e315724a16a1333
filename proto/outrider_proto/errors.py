"""Every error Outrider raises on purpose, and the gRPC status each one travels as.

OutriderError
+-- UsageError      the caller's mistake: a bad argument, file or option (exit code 2)
+-- Refusal         the peer or we decline a request, with a Reason (exit code 3)
|   +-- Violation   bytes or fields that violate the protocol
+-- LinkError       the link's fault: nothing is wrong with either side (exit code 4)
"""

from __future__ import annotations

from enum import Enum

DOMAIN = "outrider.v1"


class Reason(Enum):
    """Why a request is refused, with the gRPC status code that it travels as."""

    # The numbers only keep the values apart: members with equal values would become aliases of one another.

    MALFORMED_FRAME = "INVALID_ARGUMENT", 1
    MALFORMED_TREE = "INVALID_ARGUMENT", 2
    TREE_TOO_LARGE = "INVALID_ARGUMENT", 3
    TOKEN_OUT_OF_VOCABULARY = "INVALID_ARGUMENT", 4
    EMPTY_PROMPT = "INVALID_ARGUMENT", 5
    BAD_SAMPLING = "INVALID_ARGUMENT", 6
    MALFORMED_FEATURES = "INVALID_ARGUMENT", 7
    CONTEXT_FULL = "OUT_OF_RANGE", 8
    VERSION_MISMATCH = "FAILED_PRECONDITION", 9
    TOKENIZER_MISMATCH = "FAILED_PRECONDITION", 10
    TARGET_MISMATCH = "FAILED_PRECONDITION", 11
    UNKNOWN_TAP = "FAILED_PRECONDITION", 12
    BAD_SEQUENCE = "FAILED_PRECONDITION", 13
    TAKEN_OVER = "ABORTED", 14
    SERVER_FULL = "RESOURCE_EXHAUSTED", 15
    FRAME_TOO_LARGE = "RESOURCE_EXHAUSTED", 16
    SHUTTING_DOWN = "UNAVAILABLE", 17
    INTERNAL = "INTERNAL", 18
    NO_SERVER_DRAFT = "FAILED_PRECONDITION", 19
    NO_BUNDLE = "FAILED_PRECONDITION", 20
    BUNDLE_CHANGED = "FAILED_PRECONDITION", 21
    BUNDLE_NOT_READY = "UNAVAILABLE", 22
    NO_KEY = "UNAUTHENTICATED", 23  # no key, or one that this server does not know
    OUT_OF_SCOPE = "PERMISSION_DENIED", 24  # the key does not allow it
    OVER_QUOTA = "RESOURCE_EXHAUSTED", 25  # the key's quota
    STALLED = "UNAVAILABLE", 26  # the client was silent or did not read for too long; it may reconnect and resume

    @property
    def status(self) -> str:
        """Name of the gRPC status code."""
        return self.value[0]


# The server is away, on purpose or for now: a client keeps its session and connects again later.
TRANSIENT_REASONS = frozenset({Reason.SHUTTING_DOWN, Reason.SERVER_FULL, Reason.STALLED, Reason.OVER_QUOTA})


class OutriderError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(OutriderError, ValueError):
    """The caller's mistake; the message names the value and the remedy."""


class Refusal(OutriderError):
    """A request declined with a reason, by us or the peer. `retry_after_s`: when to retry, if known."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class Violation(Refusal, ValueError):
    """Bytes or fields from the other side that violate the protocol."""


class LinkError(OutriderError):
    """The link failed: a lost connection, a missed deadline, an unreachable server."""


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later: the link failed, or the server is away for now."""
    return isinstance(error, LinkError) or (isinstance(error, Refusal) and error.reason in TRANSIENT_REASONS)
