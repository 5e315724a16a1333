"""The client as a library, first with async, then without. Start a server first: `outrider-server serve`."""

import asyncio

from outrider_client import AsyncClient, Client, ClientConfig
from outrider_client.events import Committed, Finished, LinkChanged, RolledBack, Unverified

CONFIG = ClientConfig(server="127.0.0.1:50051", wait_for_link_s=30)


async def stream(prompt: str) -> None:
    """Print the answer as it comes, and what happens to it when the link goes and comes back."""
    async with AsyncClient(CONFIG) as client:
        async for event in client.generate(prompt, max_new_tokens=100):
            match event:
                case Committed(text=text) | Unverified(text=text):
                    print(text, end="", flush=True)
                case RolledBack(text=text):
                    print(f"[taken back: {text}]", end="")
                case LinkChanged(state=state):
                    print(f"[{state.value}]", end="")
                case Finished(statistics=s):
                    print(f"\n{s.tokens_per_second:.0f} tokens/s, {s.mean_acceptance_length:.2f} tokens a verdict")


def complete(prompt: str) -> None:
    """The whole answer at once, from code that knows no async."""
    with Client(CONFIG) as client:
        answer = client.complete(prompt, temperature=0.7, seed=1)
        print(answer.text, answer.reason)


if __name__ == "__main__":
    asyncio.run(stream("Who am I?"))
    complete("Who am I?")
