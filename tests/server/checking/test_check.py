"""`outrider-server check`: what it finds, one thing at a time, all of them in one run."""

import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tiny_targets import target
from typer.testing import CliRunner
from watched import DRAFTER, TARGET

from outrider_server.checking.environment import check_environment
from outrider_server.cli.app import app
from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

GOOD = {"target": str(TARGET), "drafters": [str(DRAFTER)], "port": 0}
NOW = datetime.now(UTC)


def invoke(*options: str, **settings):
    pairs = (
        f"--set={name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items()
    )
    return CliRunner().invoke(app, ["check", *options, *pairs])


def check(**settings) -> tuple[int, dict[str, list[dict]]]:
    """Exit code, and findings by subject."""
    result = invoke("--json", **settings)
    told = json.loads(result.stdout)
    assert told["ok"] == (result.exit_code == 0)
    by_subject: dict[str, list[dict]] = {}
    for finding in told["findings"]:
        by_subject.setdefault(finding["subject"], []).append(finding)
    return result.exit_code, by_subject


def verdicts(findings: list[dict]) -> list[str]:
    return [finding["verdict"] for finding in findings]


def certificate(folder, name: str, begins=NOW - timedelta(days=1), ends=NOW + timedelta(days=100)):
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), begins, ends)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    cert_file.write_bytes(pem)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(cert_file), str(key_file)


def test_a_pair_that_fits():
    result = invoke("--target", str(TARGET), "--dtype", "float32", drafters=[str(DRAFTER)], port=0)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(line.startswith(("ok ", "warning ")) for line in lines)
    assert any("target: target_tiny: llama" in line and "bytes of K/V a token" in line for line in lines)
    assert any(f"drafter {DRAFTER}: family moa, features of" in line and "a trial wrote" in line for line in lines)


def test_a_drafter_of_another_target_and_one_that_is_none(golden, tmp_path):
    other = golden / "eagle3" / "drafter"
    code, found = check(**GOOD | {"drafters": [str(DRAFTER), str(tmp_path), str(other)]})
    assert code == 2
    assert verdicts(found[f"drafter {tmp_path}"]) == ["error"]
    assert verdicts(found[f"drafter {DRAFTER}"]) == ["ok"]  # the others are tried all the same


def test_everything_wrong_is_told_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, found = check(target="/nowhere", port=port, metrics_port=port, keys="/no.json")
    assert code == 2
    assert {subject for subject, of in found.items() if "error" in verdicts(of)} == {
        "address",
        "metrics",
        "keys",
        "target",
    }


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_ipv6_address_with_and_without_brackets(host):
    about = next(iter(check_environment(ServerConfig("", host=host, port=0))))
    assert (about.subject, about.verdict) == ("address", "ok")
    async with Server(Verifier(target()), host) as server:
        assert server.address == f"[::1]:{server.port}"


def test_a_server_is_not_open_to_the_network_by_accident():
    code, found = check(**GOOD, host="0.0.0.0")
    assert code == 2
    assert "--open-to-network" in found["exposure"][0]["text"]
    assert check(**GOOD, host="0.0.0.0", open_to_network=True)[0] == 0


@pytest.mark.parametrize(
    ("begins", "ends", "verdict", "text"),
    [
        (-9, -2, "error", "expired on"),
        (-9, 3, "warning", "expires on"),
        (2, 90, "error", "is valid only from"),
    ],
)
def test_certificates_that_are_not_valid_now(tmp_path, begins, ends, verdict, text):
    cert, key = certificate(tmp_path, "cert", NOW + timedelta(days=begins), NOW + timedelta(days=ends))
    code, found = check(target="/nowhere", port=0, tls_cert=cert, tls_key=key)
    assert code == 2
    assert verdicts(found["tls_cert"]) == [verdict]
    assert text in found["tls_cert"][0]["text"]


def test_a_bad_configuration_is_one_line(tmp_path):
    path = tmp_path / "outrider.toml"
    path.write_text("prot = 1")
    result = invoke("--config", str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
