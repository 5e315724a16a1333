"""LangChain, LiteLLM, instructor and llm against a real gateway: text, streams, objects of a schema and calls."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[3] / ".venv" / "clients" / "bin" / "python"
SCRIPT = Path(__file__).parent / "other_clients.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no other clients here: make test-tools installs them"),
]


@pytest.mark.parametrize("name", ["langchain", "litellm", "instructor", "llm"])
def test_another_client_gets_what_it_asks_for(gateway, openai, name, tmp_path):
    package = {"langchain": "langchain_openai"}.get(name, name)
    if subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} could not be installed")
    # Without them LiteLLM and LangChain would look for a network.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(
        [PYTHON, SCRIPT, name],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **quiet, "OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "none"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    got = json.loads(done.stdout.splitlines()[-1])
    expected = openai.chat.completions.create(
        model="outrider", messages=[{"role": "user", "content": "How many melons?"}], max_tokens=200
    )
    text = expected.choices[0].message.content
    assert (got["text"], got.get("streamed", text)) == (text, text)
    for found in got["objects"]:
        assert list(found) == ["word", "count"]
        assert 0 <= found["count"] <= 99
    if "call" in got:
        function, arguments = got["call"]
        assert function == "add"
        assert list(arguments) == ["a", "b"]
    assert got.get("after", "text")
