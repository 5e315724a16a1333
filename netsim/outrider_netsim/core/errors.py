"""The errors of links, by who can do something about them.

OutriderError
+-- UsageError
|   +-- ProfileError    the user's description of a link is invalid (exit code 2)
+-- EngineError         this machine cannot run the link (exit code 1)
"""

from __future__ import annotations

from outrider_proto.errors import OutriderError, UsageError


class ProfileError(UsageError):
    """An invalid profile, trace, outage or option; the message names the value and the remedy."""


class EngineError(OutriderError, RuntimeError):
    """This machine cannot run the link: a permission, kernel module or tool is missing; the message says which."""
