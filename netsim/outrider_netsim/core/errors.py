"""The errors of links, by who can do something about them.

ValueError
  ProfileError    the user's description of a link is invalid
RuntimeError
  EngineError     this machine cannot run the link
"""

from __future__ import annotations


class ProfileError(ValueError):
    """An invalid profile, trace, outage or option; the message names the value and the remedy."""


class EngineError(RuntimeError):
    """This machine cannot run the link: a permission, kernel module or tool is missing; the message says which."""
