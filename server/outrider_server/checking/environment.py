"""Checks of addresses, keys, certificates and telemetry, and what a check finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from outrider_proto.errors import OutriderError
from outrider_proto.files import read_regular
from outrider_server.config.config import ServerConfig
from outrider_server.security.address import check_exposure, check_free

_SOON = timedelta(days=14)
Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `subject` as in the configuration."""

    subject: str
    verdict: Verdict
    text: str


def found(subject: str, look: Callable[[], str]) -> Finding:
    """Return the result of `look` as a finding; one of our own errors becomes a finding, too."""
    try:
        return Finding(subject, "ok", look())
    except OutriderError as error:
        return Finding(subject, "error", str(error))


def check_environment(config: ServerConfig, now: datetime | None = None) -> Iterator[Finding]:
    """Check everything but models."""
    security, telemetry = config.security, config.telemetry
    yield found("address", lambda: _free(config.host.strip("[]"), config.port))
    if telemetry.metrics_port is not None:
        yield found("metrics", lambda: _free(telemetry.metrics_host, telemetry.metrics_port or 0))
    yield found("exposure", lambda: _exposure(config))
    if security.tls_cert is not None:
        yield found("tls", lambda: _tls(config))
        for name, path in (("tls_cert", security.tls_cert), ("client_ca", security.client_ca)):
            if path is not None:
                yield from _certificates(name, path, now or datetime.now(UTC))
    if (keys := security.keys) is not None:
        yield found("keys", lambda: _keys(keys))
    if telemetry.otlp_endpoint is not None:
        yield found("otlp_endpoint", lambda: _otlp(telemetry.otlp_endpoint or ""))


def _free(host: str, port: int) -> str:
    check_free(host, port)
    return f"{host}:{port} is free" if port else f"{host}, a free port"


def _exposure(config: ServerConfig) -> str:
    check_exposure(config.host, config.security)
    tls = "TLS" if config.security.tls_cert else "no TLS"
    return f"{tls}, {'clients are authenticated' if config.security.authenticates_clients else 'anyone may connect'}"


def _tls(config: ServerConfig) -> str:
    from outrider_server.security.tls import server_credentials

    server_credentials(config.security)
    return "certificate and key belong together" + (", clients need one too" if config.security.client_ca else "")


def _certificates(name: str, path: Path, now: datetime) -> Iterator[Finding]:
    """Report when the certificates of a PEM file expire; unreadable files are reported elsewhere."""
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(read_regular(path))
    except (OutriderError, ValueError):
        return
    for certificate in certificates:
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        who = certificate.subject.rfc4514_string()
        if now >= ends:
            yield Finding(name, "error", f"{path}: {who} expired on {ends:%Y-%m-%d}: replace it")
        elif now < begins:
            yield Finding(name, "error", f"{path}: {who} is valid only from {begins:%Y-%m-%d} on: set the clock")
        elif now >= ends - _SOON:
            yield Finding(name, "warning", f"{path}: {who} expires on {ends:%Y-%m-%d}: replace it soon")
        else:
            yield Finding(name, "ok", f"{who}, valid until {ends:%Y-%m-%d}")


def _keys(path: Path) -> str:
    from outrider_server.security.keys import Keyring

    Keyring(path)
    return f"{path} can be read"


def _otlp(endpoint: str) -> str:
    from outrider_server.telemetry.traces import Traces

    Traces(endpoint).stop()
    return f"traces would go to {endpoint}"
