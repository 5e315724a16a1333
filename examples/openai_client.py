"""An app that knows OpenAI's API, on the gateway: nothing in it knows Outrider but the address.

python examples/openai_client.py                                    # starts a server and a gateway for itself
python examples/openai_client.py --url http://127.0.0.1:8000/v1     # or uses yours (`outrider gateway`)
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from outrider_bench.core.processes import ServerProcess
from outrider_models.core.embedded import drafter_dir, target_dir

QUESTION = "Oscar has 10 melons. Later Oscar makes 3 more. How many melons is that?"


def converse(url: str, question: str) -> None:
    """The same question streamed, and at once with log probabilities."""
    client = OpenAI(base_url=url, api_key="unused")  # a gateway on loopback asks for none
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    with client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=100) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=5, logprobs=True, top_logprobs=2)
    print(
        f"\n{answer.usage.completion_tokens if answer.usage else 0} tokens of it again, and what else might have been:"
    )
    told = answer.choices[0].logprobs
    for one in (told.content or []) if told is not None else []:
        print(
            f"  {one.token!r} {one.logprob:.2f}, {', '.join(f'{o.token!r} {o.logprob:.2f}' for o in one.top_logprobs)}"
        )


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """The address of a gateway to the embedded target, both of them processes of their own."""
    pair = ["--target", str(target_dir()), "--drafter", str(drafter_dir("moa"))]
    with ServerProcess(pair) as server:
        command = [
            sys.executable,
            "-m",
            "outrider_client.cli.app",
            "gateway",
            "--port",
            "0",
            "--server",
            server.address,
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield announced(process)
            finally:
                process.terminate()


def announced(gateway: subprocess.Popen[str]) -> str:
    """The address that it says it has."""
    assert gateway.stderr is not None
    for line in gateway.stderr:
        if found := re.search(r"http\S+/v1", line):
            return found[0]
    raise RuntimeError("the gateway did not start")


def main(
    question: Annotated[str, typer.Argument()] = QUESTION,
    url: Annotated[str | None, typer.Option(help="Of a gateway; one is started without it.")] = None,
) -> None:
    """Ask through the openai package."""
    with contextlib.nullcontext(url) if url is not None else gateway() as address:
        converse(address, question)


if __name__ == "__main__":
    typer.run(main)
