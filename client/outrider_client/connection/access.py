"""How a server is reached: over TLS or not, and the key it asks for, which never goes where others could read it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from outrider_proto.addresses import host_of, is_loopback_host
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    import grpc

MAX_KEY_LENGTH = 256
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """PEM files and what names the server. Raises UsageError.

    `ca` and the other files imply `tls`; without `ca` the system's authorities count. `server_name`: the name in the
    server's certificate, where it is not the one it is called by. `key_file` is read for every connection.
    `key_unencrypted`: the key may go over a network as it is, where whoever carries it can read it.
    """

    tls: bool = False
    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None
    key: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    key_unencrypted: bool = False

    def __post_init__(self) -> None:
        if (self.client_cert is None) != (self.client_key is None):
            raise UsageError("client-cert and client-key go together: give both or neither")
        if self.key is not None and self.key_file is not None:
            raise UsageError("key and key-file: give one of them")
        if self.key is not None:
            _checked(self.key, "key")

    @property
    def is_encrypted(self) -> bool:
        return self.tls or any(each is not None for each in (self.ca, self.client_cert, self.server_name))

    @property
    def has_key(self) -> bool:
        return self.key is not None or self.key_file is not None

    def check_for(self, server: str) -> None:
        """Raises UsageError where the key would go to `server` for all to read."""
        is_private = self.is_encrypted or is_loopback_host(host_of(server))
        if self.has_key and not is_private and not self.key_unencrypted:
            remedy = "give --tls or --ca FILE, or --send-key-unencrypted to have it so"
            raise UsageError(f"server={server}: the key would go there unencrypted; {remedy}")

    def through(self, server: str) -> Self:
        """For a way to `server` that begins at another address: the certificate is still that server's."""
        return replace(self, server_name=host_of(server)) if self.is_encrypted and self.server_name is None else self

    def metadata(self) -> Metadata:
        """What every call goes with. Raises UsageError."""
        key = self.key if self.key_file is None else _read_key(self.key_file)
        return () if key is None else (("authorization", f"Bearer {key}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None without TLS. Raises UsageError: of files that make no sense gRPC would say so for every connection."""
        if not self.is_encrypted:
            return None
        import grpc  # here, since every command line imports this module

        self.ssl_context()
        return grpc.ssl_channel_credentials(
            _read(self.ca or _system_authorities()), _read(self.client_key), _read(self.client_cert)
        )

    def ssl_context(self) -> ssl.SSLContext:
        """As Python's own TLS has it. Raises UsageError."""
        context = ssl.create_default_context()
        try:
            if self.ca is not None:
                context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise UsageError(f"ca={self.ca}: {_plain(error, 'no certificates in PEM form')}") from error
        if self.client_cert is not None:
            try:
                context.load_cert_chain(self.client_cert, self.client_key, password=_no_password)
            except (OSError, ValueError) as error:
                what = f"client-cert={self.client_cert}, client-key={self.client_key}"
                raise UsageError(f"{what}: {_plain(error, 'no certificate and its key in PEM form')}") from error
        return context


PLAIN = Access()


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _read_key(file: Path) -> str:
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise UsageError(f"key-file={file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"key-file={file}: holds no key") from None  # without the text that could be one
    return _checked(key, f"key-file={file}")


def _checked(key: str, where: str) -> str:
    """Never says what the key is."""
    if not key or len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{where}: holds no key: need 1 to {MAX_KEY_LENGTH} letters, digits and signs in one line")
    return key


def _system_authorities() -> Path | None:
    """None where the system keeps none: gRPC then has a list of its own."""
    file = ssl.get_default_verify_paths().cafile
    return None if file is None else Path(file)


def _no_password() -> str:
    raise ValueError("it needs a password: give a key without one")


def _plain(error: OSError | ValueError, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError):
        return "the key is not the certificate's" if error.reason == "KEY_VALUES_MISMATCH" else otherwise
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error) or otherwise
