"""Development certificates: an own authority and what it signs.

Elliptic curve P-256, which every peer supports. The authority may sign end-entity certificates only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outrider_proto.errors import UsageError
from outrider_proto.files import read_regular, write_for_user

_SKEW = timedelta(hours=1)  # a device's clock may be behind this one
_MAX_NAME = 64  # characters of a common name, RFC 5280


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_authority(days: int) -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Outrider development authority")
    builder = _builder(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = _usage(signs_certificates=True)
    return IssuedCertificate(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def new_server_certificate(authority: IssuedCertificate, hosts: Sequence[str], days: int) -> IssuedCertificate:
    """Sign a server certificate for DNS names and IP addresses, at least one. Raises UsageError."""
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _end_entity(authority, hosts[0][:_MAX_NAME], ExtendedKeyUsageOID.SERVER_AUTH, days, names)


def new_client_certificate(authority: IssuedCertificate, name: str, days: int) -> IssuedCertificate:
    """Sign a client certificate. Raises UsageError."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise UsageError(f"client={name!r}: need 1 to {_MAX_NAME} characters")
    return _end_entity(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, days)


def write_issued(issued: IssuedCertificate, cert: Path, key: Path, *, force: bool = False) -> None:
    """Write PEM files, the key readable by its owner alone.

    Raises UsageError where a file exists, unless forced.
    """
    private = issued.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Both before either is written: a new key beside an old certificate would not match.
    for path in (key, cert):
        if path.exists() and not force:
            raise UsageError(f"{path}: already exists; --force replaces it")
    write_for_user(key, private, mode=0o600)
    write_for_user(cert, issued.certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def read_issued(cert: Path, key: Path) -> IssuedCertificate:
    """Read a certificate and its key. Raises UsageError."""
    try:
        certificate = x509.load_pem_x509_certificate(read_regular(cert))
        private = serialization.load_pem_private_key(read_regular(key), password=None)
    except (UsageError, ValueError, TypeError) as error:
        raise UsageError(f"{cert}, {key}: not a readable authority; --force makes a new one") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != certificate.public_key():
        raise UsageError(f"{cert}, {key}: not an authority of this command; --force makes a new one")
    return IssuedCertificate(certificate, private)


def _end_entity(
    authority: IssuedCertificate, name: str, purpose: x509.ObjectIdentifier, days: int, *more: x509.ExtensionType
) -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    builder = _builder(_name(name), issuer.subject, key, days, until=issuer.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return IssuedCertificate(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, until: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - _SKEW)
    builder = builder.not_valid_after(end if until is None else min(end, until))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise UsageError(f"host={host!r}: need an IP address or a DNS name in ASCII") from error
