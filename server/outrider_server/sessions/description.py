"""What a server tells of itself."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from outrider_drafters.contracts.tap import Tap
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.frames import ServerDescription
from outrider_server.engine.target import Target


def description(target: Target, taps: Iterable[Tap], max_nodes: int) -> ServerDescription:
    return ServerDescription(
        protocol_version=PROTOCOL_VERSION,
        server_version=version("outrider"),
        target_name=target.name,
        target_fingerprint=target.fingerprint,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        vocab_size=target.vocab_size,
        max_context=target.max_context,
        max_nodes=max_nodes,
        eos_token_ids=target.eos_token_ids,
        taps=tuple(tap.info for tap in taps),
    )
