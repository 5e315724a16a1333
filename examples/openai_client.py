"""An app written for OpenAI's API that uses the gateway: only the address in it is Outrider's.

python examples/openai_client.py                                    # starts a server and a gateway of its own
python examples/openai_client.py --url http://127.0.0.1:8000/v1     # uses yours (`outrider gateway`)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from openai import APIConnectionError, APIError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from outrider_models import drafter_dir, target_dir
from outrider_server import Server, ServerConfig

QUESTION = "Oscar has 10 melons. Later Oscar makes 3 more. How many melons is that?"


def ask(url: str, question: str) -> None:
    """Ask twice: first with the answer streamed, then at once with log probabilities."""
    client = OpenAI(base_url=url, api_key="unused")  # a gateway on loopback requires no key
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    with client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=100) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=5, logprobs=True, top_logprobs=2)
    num_tokens = answer.usage.completion_tokens if answer.usage else 0
    print(f"\nThe first {num_tokens} tokens with their alternatives:")
    logprobs = answer.choices[0].logprobs
    for token in (logprobs.content or []) if logprobs is not None else []:
        alternatives = ", ".join(f"{other.token!r} {other.logprob:.2f}" for other in token.top_logprobs)
        print(f"  {token.token!r} {token.logprob:.2f}, {alternatives}")


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[str]:
    """Start a server in this process and a gateway in another; yield the gateway's address."""
    config = ServerConfig(str(target_dir()), (str(drafter_dir("moa")),), port=0)
    async with Server.build(config) as server:
        options = ("--target", "embedded", "--port", "0", "--server", server.address)
        command = ("-m", "outrider_client.cli.app", "gateway", *options)
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
        try:
            yield await announced_address(process)
        finally:
            with contextlib.suppress(ProcessLookupError):  # raised if it has ended by itself
                process.terminate()
            await process.wait()


async def announced_address(gateway: asyncio.subprocess.Process) -> str:
    """Wait until the gateway prints its address."""
    assert gateway.stderr is not None
    async for line in gateway.stderr:
        if found := re.search(r"http\S+/v1", line.decode()):
            return found[0]
    raise RuntimeError("the gateway did not start")


async def ask_own_gateway(question: str) -> None:
    async with gateway() as url:
        await asyncio.to_thread(ask, url, question)  # OpenAI's client blocks; the server needs the event loop


def main(
    question: Annotated[str, typer.Argument(help="The question to ask.")] = QUESTION,
    url: Annotated[str | None, typer.Option(help="Address of a gateway; default: start one.")] = None,
) -> None:
    """Ask a question through the openai package."""
    try:
        if url is None:
            asyncio.run(ask_own_gateway(question))
        else:
            ask(url, question)
    except APIConnectionError:
        sys.exit(f"{url or 'the gateway'}: no gateway there; is `outrider gateway` running?")
    except APIError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
