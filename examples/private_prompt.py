"""A prompt of which a part stays on the device, and what has left it in either way of keeping it.

    outrider-server serve
    python examples/private_prompt.py

`local`: the target reads what comes before the private part, and the drafter answers alone. `placeholder`: the target
answers about [PET_1], and the value is put in here. docs/privacy.md says what each of them promises; the embedded pair
is too small to answer well in either.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, get_args

import typer

from outrider_client import (
    AsyncClient,
    ClientConfig,
    ClientFrame,
    Decode,
    Draft,
    GrpcConnection,
    GrpcTransport,
    LocalModels,
    Privacy,
    parse_fences,
)

PROMPT = "Summarize:\nName: Rene\nJob: potter\nHobby: running\nCity: Oxford\nPet: <<PET: deer>>"


class WatchedTransport(GrpcTransport):
    """Notes the tokens that leave."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[int] = []

    async def connect(self) -> GrpcConnection:
        connection = await super().connect()
        send = connection.send

        def noted(frame: ClientFrame) -> None:
            if isinstance(frame, Draft | Decode):
                self.sent += [*frame.context, frame.root]
            send(frame)

        connection.send = noted  # type: ignore[method-assign] # this is what watching means
        return connection


async def run(prompt: str, server: str) -> None:
    config = ClientConfig(server=server, mode="stream", max_new_tokens=60)
    models = LocalModels.load(config)
    for privacy in get_args(Privacy):
        transport = WatchedTransport(server)
        async with AsyncClient(config, models=models, transport=transport) as client:
            answer = await client.complete(parse_fences(prompt), privacy=privacy)
        print(f"{privacy}\n  sent: {models.decode(transport.sent)!r}\n  answer: {answer.text!r}")


def main(
    prompt: Annotated[str, typer.Argument(help="<<...>> around what is private.")] = PROMPT,
    server: Annotated[str, typer.Option(help="The server's HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Answer about something that the server never learns."""
    asyncio.run(run(prompt, server))


if __name__ == "__main__":
    typer.run(main)
