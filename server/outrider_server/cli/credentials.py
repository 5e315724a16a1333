"""The commands `outrider-server keys` and `outrider-server certs`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from outrider_proto.errors import UsageError
from outrider_proto.terminal.text import print_line
from outrider_server.security.keys import Key, digest_of, new_secret, parse_scopes, read_keys, utc_now, write_keys
from outrider_server.security.principal import Quota, Scope

keys_app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the keys that clients need.")
_KEYS = Path("outrider-keys.toml")
KeysFile = Annotated[Path, Option("--keys", help="Key file, as given to serve.")]
_DAYS_OF_AUTHORITY = 10  # times what it signs


@keys_app.command()
def add(
    name: Annotated[str, Argument(help="Name of the key, for logs and `keys revoke`: letters, digits, _ and -.")],
    keys: KeysFile = _KEYS,
    scope: Annotated[
        list[str] | None,
        Option(help=f"Scope of the key: {', '.join(s.value for s in Scope)}; repeatable. Default: all."),
    ] = None,
    sessions: Annotated[int | None, Option(help="Largest number of sessions at once. Default: the server's.")] = None,
    tokens_per_minute: Annotated[
        int | None, Option(help="Context, drafted and decoded tokens per minute. Default: no limit.")
    ] = None,
    max_context: Annotated[
        int | None, Option(help="Largest number of tokens in a session. Default: the server's limit.")
    ] = None,
    expires: Annotated[
        str | None, Option(help="Expiry: a date such as 2027-01-31, or days from now such as 30d. Default: never.")
    ] = None,
    comment: Annotated[str, Option(help="Comment in the key file.")] = "",
) -> None:
    """Create a key and print it once: the file keeps only its hash."""
    known = read_keys(keys) if keys.exists() else {}
    if name in known:
        raise UsageError(f"key {name}: already exists in {keys}; revoke it first, or take another name")
    scopes = parse_scopes(scope or [each.value for each in Scope])
    secret = new_secret(name)
    quota = Quota(sessions, tokens_per_minute, max_context)
    key = Key(name, digest_of(secret), scopes, quota, _until(expires, utc_now()), comment)
    write_keys(keys, [*known.values(), key])
    print_line(f"outrider-server: key {name} added to {keys}; it will not be shown again", err=True)
    typer.echo(secret)


@keys_app.command("list")
def list_keys(keys: KeysFile = _KEYS) -> None:
    """List names, scopes, quotas and expiry of the keys in a file; never the keys."""
    now = utc_now()
    for key in read_keys(keys).values():
        scopes = ",".join(scope.value for scope in Scope if scope in key.scopes)
        limits = {"sessions": key.quota.sessions, "tokens/min": key.quota.tokens_per_minute}
        limits["context"] = key.quota.max_context
        quotas = [f"{name}={value}" for name, value in limits.items() if value is not None]
        state = "expired" if key.is_expired(now) else "expires"
        ends = [] if key.expires is None else [f"{state} {key.expires.isoformat(timespec='minutes')}"]
        print_line("  ".join([f"{key.id:20}", scopes, *quotas, *ends, *([key.comment] if key.comment else [])]))


@keys_app.command()
def revoke(name: Annotated[str, Argument(help="Name of the key.")], keys: KeysFile = _KEYS) -> None:
    """Remove a key from the file: a server that uses it ends the key's streams within seconds."""
    known = read_keys(keys)
    if name not in known:
        raise UsageError(f"key {name}: not in {keys}, which has {', '.join(known) or 'none'}")
    write_keys(keys, [key for key in known.values() if key.id != name])
    print_line(f"outrider-server: key {name} revoked", err=True)


def certs(
    host: Annotated[
        list[str] | None, Option(help="DNS name or address by which clients reach the server; repeatable.")
    ] = None,
    out: Annotated[Path, Option(help="Folder for the files.")] = Path("outrider-certs"),
    client: Annotated[
        list[str] | None, Option(help="Name of a client to create a certificate for; repeatable.")
    ] = None,
    days: Annotated[int, Option(help="Days of validity; the authority's is ten times as long.", min=1, max=825)] = 90,
    force: Annotated[bool, Option("--force", help="Replace existing files, the authority included.")] = False,
) -> None:
    """Create development certificates: an authority (once), a server's and clients'.

    An existing authority signs again, so that clients need no new file.
    """
    from outrider_server.security import certs as making  # cryptography: loaded only here

    if not host and not client:
        raise UsageError("host, client: name a server's --host, or a --client, or both")
    for name in client or []:
        if not name or Path(name).name != name or name.startswith(".") or name in ("ca", "server"):
            raise UsageError(f"client={name!r}: names its files; take a plain name other than ca and server")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={out}: {error.strerror}") from error
    ca = out / "ca.pem", out / "ca.key"
    if all(path.exists() for path in ca) and not force:
        authority = making.read_issued(*ca)
    else:
        authority = making.new_authority(days * _DAYS_OF_AUTHORITY)
        making.write_issued(authority, *ca, force=force)
    issued = {name: making.new_client_certificate(authority, name, days) for name in client or []}
    if host:
        issued["server"] = making.new_server_certificate(authority, host, days)
    for name, each in issued.items():
        making.write_issued(each, out / f"{name}.pem", out / f"{name}.key", force=force)
    names = ", ".join(sorted(f"{name}.pem" for name in issued))
    print_line(f"outrider-server: {out}: ca.pem (give it to clients), {names}, and a .key to each", err=True)


def _until(text: str | None, now: datetime) -> datetime | None:
    """Parse an expiry. Raises UsageError."""
    if text is None:
        return None
    try:
        if text.endswith("d"):
            end = now + timedelta(days=int(text[:-1]))
        else:
            end = datetime.fromisoformat(text)
            end = end.replace(tzinfo=UTC) if end.tzinfo is None else end
    except (ValueError, OverflowError):
        raise UsageError(f"expires={text}: need a date such as 2027-01-31, or days from now such as 30d") from None
    if end <= now:
        raise UsageError(f"expires={text}: lies in the past")
    return end.replace(microsecond=0)
