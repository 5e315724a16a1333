"""The client: drafts on the device, has its drafts verified by a server, and rides on alone when the link dies."""

from outrider_client.async_client import AsyncClient, Completion
from outrider_client.client import Client
from outrider_client.config import ClientConfig
from outrider_client.local_models import LocalModels
from outrider_client.logprobs import TokenLogprobs

__all__ = ["AsyncClient", "Client", "ClientConfig", "Completion", "LocalModels", "TokenLogprobs"]
