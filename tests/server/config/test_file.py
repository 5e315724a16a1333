"""The configuration from a file and from options: what wins, and what is said of mistakes."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import options_of
from outrider_proto.options.values import as_toml
from outrider_server.cli.app import app
from outrider_server.config.config import DeployConfig, Scale, ServerConfig
from outrider_server.config.file import load_config

ROOT = Path(__file__).parents[3]


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "outrider.toml"
        path.write_text(text)
        return path

    return write


def test_a_draft_vocabulary_is_an_option_of_every_drafter(file, tmp_path):
    (tmp_path / "vocab.json").touch()
    config = load_config(file('target = "org/t"\ndrafters = ["org/a", "org/b,tli=1"]\ndraft_vocab = "vocab.json"'), {})
    chosen = f"draft_vocab={tmp_path / 'vocab.json'}"
    assert config.drafters == (f"org/a,{chosen}", f"org/b,tli=1,{chosen}")


def test_paths_are_relative_to_the_file(file, tmp_path):
    (tmp_path / "models" / "big").mkdir(parents=True)
    config = load_config(
        file("""
            target = "models/big"
            drafters = ["./small,tli=1", "org/name", "lookup"]
            pace = "paper"
            edge_cache = "cache"
            [security]
            keys = "keys.toml"
        """),
        {},
    )
    assert config.target == str(tmp_path / "models" / "big")
    assert config.drafters == (f"{tmp_path / 'small'},tli=1", "org/name", "lookup")
    assert config.pace == "paper"
    assert config.edge_cache == tmp_path / "cache"
    assert config.security.keys == tmp_path / "keys.toml"


def test_without_a_target_it_is_the_embedded_one(file):
    config = load_config(file('drafters = ["moa", "lookup"]'), {})
    assert config.target == str(target_dir())
    assert config.drafters == (str(drafter_dir("moa")), "lookup")
    assert len(load_config(None, {}).drafters) > 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 70000", "port=70000: need 0 (a free one) to 65535"),
        ("[limits]\nmax_sessions = 0", "[limits] max_sessions=0: need at least 1"),
        ("[limits]\nsession_ttl_s = nan", "[limits] session_ttl_s=nan: need at least 0"),
        ("[limits]\nbatch_tokens = 0", "[limits] batch_tokens=0: need"),
        ("[limits]\nbatch_tokens = 16\nchunk_tokens = 17", "[limits] chunk_tokens=17: need at most batch_tokens=16"),
        ("[security]\ntls_key = 'k.pem'", "[security] tls_cert and tls_key go together"),
        ("[telemetry]\nlog_format = 'xml'", "[telemetry] log_format=\"xml\": input should be 'text' or 'json'"),
        ("[telemetry]\notlp_endpoint = 'here'", "[telemetry] otlp_endpoint=here: need http://HOST:PORT"),
    ],
)
def test_a_mistake_names_file_key_and_remedy(file, text, message):
    path = file(text)
    with pytest.raises(UsageError) as caught:
        load_config(path, {"target": "a"})
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_every_field_is_an_option_and_a_line_of_the_file():
    names = [setting.name for setting in options_of(ServerConfig)]
    assert len(set(names)) == len(names)
    assert {"drafter", "session-ttl", "max-nodes", "tls-cert", "metrics-port"} <= set(names)
    told = tomllib.loads(as_toml(load_config(None, {})))
    for setting in options_of(ServerConfig):
        place = told
        for part in setting.path[:-1]:
            place = place[part]
        assert setting.path[-1] in place or setting.default is None, setting


def test_the_commands_options_and_file(file):
    path = file('target = "a"\nport = 3\n[limits]\nmax_sessions = 7')
    settings = ("session-ttl=2", "server-draft=true", 'drafters=["x", "y"]', "edge_bundle=false", "stall=9")
    result = CliRunner().invoke(app, ["config", "--config", str(path), *(f"--set={each}" for each in settings)])
    assert result.exit_code == 0, result.stderr
    told = tomllib.loads(result.stdout)
    assert (told["target"], told["port"], told["drafters"]) == ("a", 3, ["x", "y"])
    assert (told["server_draft"], told["edge_bundle"]) == (True, False)
    limits = told["limits"]
    assert (limits["max_sessions"], limits["session_ttl_s"], limits["stall_s"]) == (7, 2.0, 9.0)


def test_a_deployment_has_a_section_of_its_own(file):
    config = load_config(
        file('target = "a"\n[deploy]\nreplicas = 2\nsurge = true\n[security]\nkeys = "k"'), {}, DeployConfig
    )
    assert config.deploy == Scale(2, surge=True)
    assert config.security.keys.is_absolute()


def test_the_example_file_loads_and_names_only_what_there_is():
    config = load_config(ROOT / "deploy" / "outrider.toml", {})
    assert config.telemetry.metrics_port == 9400
    assert config.telemetry.log_format == "json"


def test_loading_it_loads_nothing_heavy():
    heavy = ("torch", "transformers", "grpc", "numpy", "prometheus_client", "cryptography", "opentelemetry", "ray")
    program = f"""
import sys, outrider_server
outrider_server.load_config(None, {{"target": "x"}})
print(*[name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
