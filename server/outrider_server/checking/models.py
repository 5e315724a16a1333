"""Checks that target and drafters load, fit each other, and generate together; what int8 costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from outrider_drafters.emulation.pace import Pace
from outrider_drafters.quantization.quantize import dtype_name
from outrider_proto.errors import OutriderError
from outrider_proto.frames import ClientFrame, Decode, Finish, Open, Opened, ServerTree, Verdict
from outrider_server.checking.environment import Finding, found
from outrider_server.checking.int8_quality import Reading, compared, read_codes
from outrider_server.config.config import ServerConfig
from outrider_server.engine.hf_model import holds_int8
from outrider_server.engine.load import load_drafters, load_taps
from outrider_server.engine.target import Target
from outrider_server.kv.budget import budget_bytes
from outrider_server.kv.size import show_bytes
from outrider_server.parallel.load import load_target
from outrider_server.sessions.verifier import Verifier

_PROMPT_TOKENS = 8
_NEW_TOKENS = 16
_TRIAL_TOKENS = 1024  # of memory
_TREE = ServerTree(breadth=4, levels=3, budget=12)


def check_models(config: ServerConfig) -> Iterator[Finding]:
    """Check the target, then each drafter with it."""
    if config.pace is not None:
        pace = config.pace
        yield found("pace", lambda: f"{Pace.load(pace).name}: emulated times")
    try:
        target = load_target(config)
    except OutriderError as error:
        yield Finding("target", "error", str(error))
        return
    codes: Reading | None = None
    try:
        yield from _tried(target, config)
        if config.dtype == "int8":
            try:
                codes = read_codes(target, config)
            except OutriderError as error:
                yield Finding("int8", "warning", str(error))
    finally:
        target.close()
    if codes is not None:
        del target
        yield compared(codes, config)


def _tried(target: Target, config: ServerConfig) -> Iterator[Finding]:
    yield Finding("target", "ok", _described(target))
    if target.tokenizer_fingerprint == "none":
        yield Finding("target", "warning", "no tokenizer beside it: clients bring their own, unchecked")
    yield found("kv_memory", lambda: _memory(target, config))
    for source in config.drafters:
        yield found(f"drafter {source}", partial(_pair, target, config, source))


def _described(target: Target) -> str:
    kv = target.kv
    dtype = "int8 with K/V in float32" if holds_int8(target.model) else dtype_name(kv.dtype)
    session_mib = kv.bytes_per_token * target.max_context / 2**20
    return (
        f"{target.name}: {target.model.config.model_type}, {len(kv.rows)} layers, vocabulary {target.vocab_size},"
        f" context {target.max_context}, {dtype} on {kv.device}; slots reproduce its own attention;"
        f" {kv.bytes_per_token} bytes of K/V a token, {session_mib:.1f} MiB a full session"
    )


def _memory(target: Target, config: ServerConfig) -> str:
    """Return what the budget holds. Raises UsageError where that is too little."""
    num_bytes = budget_bytes(config.limits.kv_memory, target.kv)
    num_tokens = num_bytes // target.kv.bytes_per_token
    return f"{show_bytes(num_bytes)} for K/V and features: {num_tokens} tokens of K/V alone"


def _pair(target: Target, config: ServerConfig, source: str) -> str:
    """Check one drafter. Raises UsageError for what does not fit."""
    taps = load_taps(target, config.target, [source])
    (drafter,) = load_drafters(target, config.target, [source])
    # Not all the memory: in pages it is taken at once, and beside what an earlier trial has not given back yet.
    limits = replace(config.limits, kv_memory=str(_TRIAL_TOKENS * target.kv.row_bytes(drafter.tap.width)))
    verifier = Verifier(target, taps, limits, drafters=[drafter])
    num_tokens, num_passes = asyncio.run(_trial(verifier, drafter.tap.fingerprint))
    features = f"features of {drafter.tap.width} values a token" if drafter.tap.width else "no features"
    return f"family {drafter.family}, {features}; a trial wrote {num_tokens} tokens in {num_passes} passes"


async def _trial(verifier: Verifier, tap: str) -> tuple[int, int]:
    """Generate a little with the drafter beside the target; return tokens and passes. Raises Refusal."""
    await verifier.start()
    try:
        num_tokens = num_passes = 0
        async with aclosing(verifier.session(_client_frames(verifier, tap))) as frames:
            async for frame in frames:
                assert not isinstance(frame, Opened) or frame.server_draft
                if isinstance(frame, Verdict):
                    num_tokens += len(frame.tokens) + (frame.bonus is not None)
                    num_passes += 1
                    if frame.finish is not Finish.NOT_YET:
                        break
        return num_tokens, num_passes
    finally:
        await verifier.stop()


async def _client_frames(verifier: Verifier, tap: str) -> AsyncIterator[ClientFrame]:
    about = verifier.describe()
    yield Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint, tap)
    prompt = tuple((7919 * i + 13) % about.vocab_size for i in range(_PROMPT_TOKENS))
    room = min(_NEW_TOKENS, about.max_context - _PROMPT_TOKENS)
    yield Decode(1, 0, prompt[:-1], prompt[-1], room, features_from=0, tree=_TREE)
