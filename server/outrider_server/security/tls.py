"""Server-side TLS from PEM files that may be replaced while serving: each handshake uses the newest."""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from outrider_proto.errors import UsageError
from outrider_server.config.security import SecurityConfig

if TYPE_CHECKING:
    Stamp = tuple[tuple[int, int, int], ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Files:
    cert: Path
    key: Path
    client_ca: Path | None

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def stamp(self) -> Stamp:
        """Return what changes when a file is replaced. Raises OSError."""
        return tuple((about.st_mtime_ns, about.st_size, about.st_ino) for about in (p.stat() for p in self.all))

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Load and check the files. Raises UsageError."""
        for path in self.all:
            try:
                path.read_bytes()
            except OSError as error:
                raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        # gRPC takes any bytes and then fails at every handshake: let Python's ssl check the files first.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except ValueError as error:
            raise UsageError(f"tls_key={self.key}: needs a password: give a key without one") from error
        except ssl.SSLError as error:
            raise UsageError(f"tls_cert={self.cert}, tls_key={self.key}: {_plain(error)}") from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise UsageError(f"client_ca={self.client_ca}: {_plain(error)}") from error
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        ca = None if self.client_ca is None else self.client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], ca)


class _CertificateReloader:
    """Called by gRPC at each handshake, from its own threads.

    Raises UsageError for files that are unusable at the start. Unusable files are read once, not at every handshake:
    callers are still unknown.
    """

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._config = files.load()
        self._stamp: Stamp | None = files.stamp()

    def __call__(self) -> grpc.ServerCertificateConfiguration:
        stamp: Stamp | None = None  # None while a file is missing
        try:
            with suppress(OSError):
                stamp = self._files.stamp()
            if stamp != self._stamp:
                # Before load(): files that cannot be used are not read again until they change.
                self._stamp = stamp
                self._config = self._files.load()
                _log.info("TLS files read again")
        except (OSError, UsageError) as error:
            _log.error("TLS files cannot be read again, the old ones stay in use: %s", error)
        return self._config


def server_credentials(security: SecurityConfig) -> grpc.ServerCredentials | None:
    """Return gRPC credentials, None without TLS. Raises UsageError."""
    if security.tls_cert is None or security.tls_key is None:
        return None
    files = _Files(security.tls_cert, security.tls_key, security.client_ca)
    fetcher = _CertificateReloader(files)
    return grpc.dynamic_ssl_server_credentials(fetcher(), fetcher, security.client_ca is not None)


def _no_password() -> str:
    raise ValueError("encrypted")


def _plain(error: ssl.SSLError) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in PEM form",
    }
    return known.get(error.reason or "", f"not usable PEM files ({error.reason or 'unknown format'})")
