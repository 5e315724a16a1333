"""The client: drafts on the device, has its drafts verified by a server, and rides on alone when the link dies."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read as grpc is imported: else each failed handshake is told twice

from outrider_client.async_client import AsyncClient, Completion
from outrider_client.client import Client
from outrider_client.connection.access import Access
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_client.text.logprobs import TokenLogprobs

__all__ = ["Access", "AsyncClient", "Client", "ClientConfig", "Completion", "LocalModels", "TokenLogprobs"]
