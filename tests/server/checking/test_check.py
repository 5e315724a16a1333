"""`outrider-server check`: what it finds, one thing at a time, all of them in one run."""

import json
import os
import re
import shutil
import socket
from datetime import UTC, datetime, timedelta

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tiny_targets import target
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner
from watched import DRAFTER, TARGET

from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import FAMILIES, held_out
from outrider_server.checking import int8_quality
from outrider_server.checking.environment import check_environment
from outrider_server.cli.app import app
from outrider_server.config.config import ServerConfig
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import needs_int8

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
    [(-9, -2, "error", "expired on"), (-9, 3, "warning", "expires on"), (2, 90, "error", "is valid only from")],
)
def test_certificates_that_are_not_valid_now(tmp_path, begins, ends, verdict, text):
    cert, key = certificate(tmp_path, "cert", NOW + timedelta(days=begins), NOW + timedelta(days=ends))
    code, found = check(target="/nowhere", port=0, tls_cert=cert, tls_key=key)
    assert code == 2
    assert verdicts(found["tls_cert"]) == [verdict]
    assert text in found["tls_cert"][0]["text"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
def test_a_certificate_that_nobody_writes_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, found = check(target="/nowhere", port=0, tls_cert=str(tmp_path / "pipe"), tls_key=str(tmp_path / "pipe"))
    assert (code, verdicts(found["tls"])) == (2, ["error"])
    assert "not a regular file" in found["tls"][0]["text"]


def test_a_bad_configuration_is_one_line(tmp_path):
    path = tmp_path / "outrider.toml"
    path.write_text("prot = 1")
    result = invoke("--config", str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@needs_int8
def test_what_int8_costs_is_told_once_it_is_asked_for(cache, monkeypatch):
    settings = {"target": str(target_dir()), "drafters": [], "port": 0}
    assert "int8" not in check(**settings, dtype="float32")[1]
    (told,) = check(**settings, dtype="int8")[1]["int8"]
    form = r"(\S+) nats a token, in bfloat16 (\S+); first choices equal at (\S+)% of (\d+) tokens of English and code"
    coded, plain, share, count = map(float, re.fullmatch(form, told["text"]).groups())
    assert told["verdict"] == "ok"
    assert plain == pytest.approx(transformers_nats(), rel=0.005)
    assert 0 < abs(coded - plain) < 0.05 * plain
    assert 90 < share < 100
    assert count > 500
    monkeypatch.setattr(int8_quality, "load_target", None)  # not loaded again
    assert check(**settings, dtype="int8")[1]["int8"] == [told]


def transformers_nats() -> float:
    """Nats a token of the text, as transformers' own loss has them in float32."""
    tokenizer = AutoTokenizer.from_pretrained(str(target_dir()))
    model = AutoModelForCausalLM.from_pretrained(str(target_dir()), dtype=torch.float32)
    losses, counts = [], []
    for sample in (each for family in FAMILIES for each in held_out(family, 2)):
        ids = tokenizer("\n".join(turn.content for turn in sample.conversation()), return_tensors="pt")["input_ids"]
        counts.append(ids.shape[1] - 1)
        losses.append(model(ids, labels=ids).loss.item() * counts[-1])
    return sum(losses) / sum(counts)


@needs_int8
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("memory", r"not compared with its weights in bfloat16: they take [\d.]+ MiB, 0 B is free$"),
        ("tokenizer", r"tokenizer\.json: "),
    ],
)
def test_int8_is_no_error_where_it_cannot_be_compared(cache, monkeypatch, tmp_path, trouble, message):
    place = shutil.copytree(target_dir(), tmp_path / "model")
    if trouble == "memory":
        monkeypatch.setattr(int8_quality, "free_bytes", lambda _: 0)
    else:
        (place / "tokenizer.json").write_text(json.dumps({"model": {"type": "none"}}))
    code, found = check(target=str(place), drafters=[], port=0, dtype="int8")
    assert verdicts(found["int8"]) == ["warning"]
    assert re.search(message, found["int8"][0]["text"])
    assert code == 0
