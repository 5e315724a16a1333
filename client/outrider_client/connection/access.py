"""Access to a server: TLS, and the key the server asks for, which is never sent where others could read it."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from outrider_proto.addresses import host_of, is_loopback_host
from outrider_proto.errors import UsageError
from outrider_proto.files import read_regular, read_text
from outrider_proto.flag import Flag

if TYPE_CHECKING:
    import grpc

DEFAULT_PORT = "50051"
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[\w.-]+)(?::([0-9]{1,5}))?")
KEY_VARIABLE = "OUTRIDER_KEY"
MAX_KEY_LENGTH = 256
_PANEL = "Encryption and key"
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """TLS's PEM files, the server's name and the access key. All but the key imply `tls`. Raises UsageError."""

    tls: Annotated[bool, Flag("Use TLS and trust the system's certificate authorities.", panel=_PANEL)] = False
    ca: Annotated[
        Path | None, Flag("PEM file of the certificate authority to trust instead. Implies --tls.", panel=_PANEL)
    ] = None
    client_cert: Annotated[Path | None, Flag("PEM file of this client's certificate. Implies --tls.", expert=True)] = (
        None
    )
    client_key: Annotated[Path | None, Flag("PEM file of the private key to client-cert.", expert=True)] = None
    server_name: Annotated[
        str | None, Flag("Name in the server's certificate. Implies --tls. Default: the host of --server.", expert=True)
    ] = None
    key: str | None = field(default=None, repr=False)  # or in a file, which is read for every connection
    key_file: Annotated[
        Path | None,
        Flag(
            f"File with the key that the server asks for. The key itself can stand in ${KEY_VARIABLE}.",
            panel=_PANEL,
            envvar="OUTRIDER_KEY_FILE",
        ),
    ] = None
    key_unencrypted: Annotated[
        bool,
        Flag(
            "Send the key over a network without TLS, where others can read it.",
            name="send-key-unencrypted",
            expert=True,
        ),
    ] = False

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
        """Raise UsageError if the key would go to `server` unencrypted."""
        is_private = self.is_encrypted or is_loopback_host(host_of(server))
        if self.has_key and not is_private and not self.key_unencrypted:
            remedy = "give --tls or --ca FILE, or --set send-key-unencrypted=true to allow it"
            raise UsageError(f"server={server}: the key would be sent unencrypted; {remedy}")

    def through(self, server: str) -> Self:
        """Return the access for reaching `server` through another address: the certificate is still `server`'s."""
        return replace(self, server_name=host_of(server)) if self.is_encrypted and self.server_name is None else self

    def metadata(self) -> Metadata:
        """Return the metadata of every call. Raises UsageError."""
        key = self.key
        if self.key_file is not None:
            key = _checked(read_text(self.key_file, "key-file").strip(), f"key-file={self.key_file}")
        return () if key is None else (("authorization", f"Bearer {key}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return gRPC's credentials, or None without TLS. Raises UsageError."""
        if not self.is_encrypted:
            return None
        import grpc  # here, since every command line imports this module

        # Only to check the files: gRPC would report bad ones at every connection, as a link that fails.
        self.ssl_context()
        authorities = self.ca or ssl.get_default_verify_paths().cafile  # where there are none, gRPC uses its own list
        return grpc.ssl_channel_credentials(
            _read("ca", Path(authorities) if authorities else None),
            _read("client-key", self.client_key),
            _read("client-cert", self.client_cert),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return the same settings for Python's own TLS. Raises UsageError."""
        for option, path in (("ca", self.ca), ("client-key", self.client_key), ("client-cert", self.client_cert)):
            _read(option, path)  # here, since Python's TLS would wait for a pipe, and read a device for ever
        try:
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


def server_address(server: str) -> str:
    """Return HOST:PORT for a HOST, an IPv6 host or HOST:PORT. Raises UsageError."""
    address = _ADDRESS.fullmatch(f"[{server}]" if _is_ipv6(server) else server)
    host, port = ("", "0") if address is None else address.groups(DEFAULT_PORT)
    if not host or not 0 < int(port) < 65536 or (host.startswith("[") and not _is_ipv6(host[1:-1])):
        scheme, is_url, _ = server.partition("://")
        remedy = f"without {scheme}://" if is_url else f"such as 127.0.0.1:{DEFAULT_PORT}"
        raise UsageError(f"server={server!r}: need HOST or HOST:PORT, {remedy}")
    return f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6 and "]" not in host  # which it takes for a part of the zone
    except ValueError:
        return False


def _read(option: str, path: Path | None) -> bytes | None:
    return None if path is None else read_regular(path, name=f"{option}={path}")


def _checked(key: str, where: str) -> str:
    """Return `key` if it is well formed. The error never quotes it. Raises UsageError."""
    if not key or len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{where}: holds no key: need 1 to {MAX_KEY_LENGTH} printable ASCII characters without spaces")
    return key


# Without this callback OpenSSL would ask for the password on the terminal and hang the program.
def _no_password() -> str:
    raise ValueError("it needs a password: give a key without a password")


def _plain(error: OSError | ValueError, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError):
        return "the key is not the certificate's" if error.reason == "KEY_VALUES_MISMATCH" else otherwise
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error) or otherwise
