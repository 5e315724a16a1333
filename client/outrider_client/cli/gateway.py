"""`outrider gateway`. Imports what serves HTTP only when it runs, since it is an extra."""

from __future__ import annotations

from dataclasses import replace

from outrider_client.cli.interrupts import raise_on_interrupt
from outrider_client.cli.options import ClientOptions, with_models
from outrider_client.core.config import UNLIMITED
from outrider_client.core.gateway_config import GatewayConfig
from outrider_proto.errors import UsageError

_OF_REQUESTS = {
    "on_reconnect": 'with "outrider": {"unverified": ...}',
    "logprobs": "with OpenAI's logprobs and top_logprobs",
}


def gateway_command(options: ClientOptions, gateway: GatewayConfig) -> None:
    """Serve OpenAI's API on this device: /v1/chat/completions, /v1/completions, /v1/models; a chat page at /."""
    for name, how in _OF_REQUESTS.items():
        if name in options.on_command_line:
            raise UsageError(f"{name}: each request sets it itself, {how}")
    try:
        from outrider_client.gateway.serving import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'outrider[gateway]'") from error
    from outrider_client.models.local_models import recommended_sampling

    gateway = replace(gateway, api_key=gateway.read_key(), api_key_file=None)
    client = with_models(options.config())
    if gateway.generation_config:
        recommended = recommended_sampling(client.target)
        client = client.for_answer(**{name: value for name, value in recommended.items() if not options.says(name)})
    limit = None if client.max_new_tokens == UNLIMITED else client.max_new_tokens
    # Each request sets its own.
    client = client.for_answer(max_new_tokens=1, on_reconnect="verify", logprobs=None)
    raise_on_interrupt()
    serve(client, replace(gateway, max_tokens=limit))
