"""What can go wrong with a link, by whose doing.

ValueError
  ProfileError    the user's description of a link cannot be
RuntimeError
  EngineError     this machine cannot do what was asked
"""

from __future__ import annotations


class ProfileError(ValueError):
    """A profile, trace, outage or other description of a link that cannot be; the message names value and remedy."""


class EngineError(RuntimeError):
    """This machine cannot make the link: a right, a kernel module or a tool is missing; the message says which."""
