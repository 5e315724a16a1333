"""LangChain, LiteLLM, instructor, llm and aider against a real gateway: text, streams, objects and calls."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

VENV = Path(__file__).parents[3] / ".venv"
PYTHON, AIDER = VENV / "clients" / "bin" / "python", VENV / "aider" / "bin" / "aider"
SCRIPT = Path(__file__).parent / "other_clients.py"

pytestmark = pytest.mark.slow
MISSING = "no other clients here: make test-tools installs them"


@pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)
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


@pytest.mark.skipif(not AIDER.exists(), reason=MISSING)
def test_aider_takes_the_answer_for_its_own(gateway, tmp_path):
    """As docs/apps.md sets it up; what comes of the answer is the model's affair."""
    (tmp_path / "hello.py").write_text('print("Helo")\n')
    page = (Path(__file__).parents[3] / "docs" / "apps.md").read_text()
    options = re.search(r"^aider (.*)$", page, re.MULTILINE)[1].split()
    options += ["--no-check-update", "--analytics-disable", "--no-git", "--yes-always", "--no-pretty"]
    told = ["--message", "Write Hello.", "--no-show-release-notes", "--llm-history-file", "said.txt", "hello.py"]
    done = subprocess.run(
        [AIDER, *options, *told],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "HOME": str(tmp_path), "OPENAI_API_BASE": f"{gateway.url}/v1", "OPENAI_API_KEY": "none"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = (tmp_path / "said.txt").read_text().partition("LLM RESPONSE")[2].splitlines()[1:]
    assert answer[0].startswith("ASSISTANT Here is")
    assert all(line.removeprefix("ASSISTANT").strip() in done.stdout for line in answer)
