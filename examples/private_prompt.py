"""A prompt with a private part that stays on the device, and the text that leaves it in each privacy mode.

    outrider-server serve --target embedded
    python examples/private_prompt.py

`local`: the target reads only what precedes the private part, and the drafter answers alone. `placeholder`: the target
answers about [PET_1], and the client puts the value back in. docs/privacy.md says what each mode guarantees. The
embedded models are too small to answer well in either.
"""

from __future__ import annotations

import asyncio
import sys
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
    OutriderError,
    Privacy,
    parse_fences,
)

PROMPT = "Summarize:\nName: Rene\nJob: potter\nHobby: running\nCity: Oxford\nPet: <<PET: deer>>"


class RecordingTransport(GrpcTransport):
    """A transport that records the tokens it sends."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[int] = []

    async def connect(self) -> GrpcConnection:
        connection = await super().connect()
        send = connection.send

        def record_and_send(frame: ClientFrame) -> None:
            if isinstance(frame, Draft | Decode):
                self.sent += [*frame.context, frame.root]
            send(frame)

        connection.send = record_and_send  # type: ignore[method-assign] # to see every frame
        return connection


async def run(prompt: str, server: str) -> None:
    # Named as the offline drafter, too: it reads the features of what precedes the private part.
    config = ClientConfig(
        server, target="embedded", drafter="moa", offline_drafter="moa", mode="stream", max_new_tokens=60
    )
    models = LocalModels.load(config)
    for privacy in get_args(Privacy):
        transport = RecordingTransport(server)
        async with AsyncClient(config, models=models, transport=transport) as client:
            answer = await client.complete(parse_fences(prompt), privacy=privacy)
        print(f"{privacy}\n  sent: {models.decode(transport.sent)!r}\n  answer: {answer.text!r}")


def main(
    prompt: Annotated[str, typer.Argument(help="Prompt with <<KIND: ...>> around its private parts.")] = PROMPT,
    server: Annotated[str, typer.Option(help="Address of the server, HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Answer a prompt whose private part never reaches the server."""
    try:
        asyncio.run(run(prompt, server))
    except OutriderError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
