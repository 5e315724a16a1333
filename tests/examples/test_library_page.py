"""The code of docs/library.md runs as it is, block after block, apart from the server's address."""

import re
from pathlib import Path

from outrider_client import ClientConfig

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
DEFAULT = ClientConfig().server


def test_every_block_runs(server, capsys, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    monkeypatch.setattr("outrider_client.async_client.GrpcTransport", at(server))
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "Answer: 13 eos" in said
    assert "[connecting][online]" in said


def at(server: str):
    """Return a transport factory that connects to `server` instead of the page's address."""
    from outrider_client.connection.access import Access
    from outrider_client.connection.grpc_transport import GrpcTransport

    def transport(address: str, access: Access) -> GrpcTransport:
        assert (address, access) == (DEFAULT, Access())
        return GrpcTransport(server, access)

    return transport
