"""A verifier from a configuration."""

from __future__ import annotations

import torch

from outrider_drafters.emulation.pace import Pace
from outrider_server.config.config import ServerConfig
from outrider_server.engine.server_drafter import load_drafters
from outrider_server.engine.taps import load_taps
from outrider_server.engine.target import Target
from outrider_server.parallel.load import load_target
from outrider_server.sessions.verifier import Verifier
from outrider_server.telemetry.observer import Observer


def build_verifier(config: ServerConfig, observer: Observer | None = None) -> Verifier:
    """Load target, taps and drafters. Raises UsageError."""
    pace = None if config.pace is None else Pace.load(config.pace)
    target = load_target(config)
    try:
        return _verifier_on(target, config, observer, pace)
    except BaseException:
        target.close()
        raise


def _verifier_on(target: Target, config: ServerConfig, observer: Observer | None, pace: Pace | None) -> Verifier:
    if (threads := config.threads or (1 if target.is_small else None)) is not None:
        torch.set_num_threads(threads)
    taps = load_taps(target, config.target, config.drafters)
    drafters = load_drafters(target, config.target, config.drafters) if config.server_draft else []
    wait_s = config.security.longest_wait_s
    return Verifier(target, taps, config.limits, pace=pace, drafters=drafters, observer=observer, longest_wait_s=wait_s)
