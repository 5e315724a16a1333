"""`outrider gateway`. Imports what serves HTTP only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from outrider_client.cli.options import client_config
from outrider_client.core.config import OnReconnect
from outrider_proto.errors import UsageError

KEY_VARIABLE = "OUTRIDER_API_KEY"


def gateway_command(
    host: Annotated[str, Option(help="Address to listen at; others than loopback need a key.")] = "127.0.0.1",
    port: Annotated[int, Option(help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None, Option(envvar=KEY_VARIABLE, help="What apps must send. In the variable fewer can read it.")
    ] = None,
    api_key_file: Annotated[Path | None, Option(help="A file that holds it.")] = None,
    model_name: Annotated[
        list[str] | None, Option(help="What apps may call the model; outrider. Repeat it for several names.")
    ] = None,
    sessions: Annotated[int, Option(help="Answers at once.")] = 4,
    queue: Annotated[int, Option(help="Requests that may wait for a session; more are turned away.")] = 16,
    max_new_tokens: Annotated[
        int | None, Option(help="Tokens of an answer where a request does not say; as many as there is room for.")
    ] = None,
    wait_for_link: Annotated[float, Option(help="Seconds to wait for it when the drafter is done.")] = 10.0,
    profile: Annotated[
        str | None, Option(help="Put an emulated link before the server, which the page can cut: paper-4g, ...")
    ] = None,
    engine: Annotated[
        Literal["auto", "kernel", "tun", "proxy"], Option(help="Of the emulated link; proxy needs no rights.")
    ] = "auto",
    on_reconnect: Annotated[OnReconnect | None, Option(hidden=True)] = None,
    logprobs: Annotated[int | None, Option(hidden=True)] = None,
    **options: Any,  # the shared ones
) -> None:
    """Answer OpenAI's API on this device: /v1/chat/completions, /v1/completions, /v1/models; a page at /."""
    _leave_to_requests(on_reconnect, logprobs)
    try:
        from outrider_client.gateway.gateway import GatewayConfig
        from outrider_client.gateway.serving import ServingConfig, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'outrider[gateway]'") from error
    key = _api_key(api_key, api_key_file)
    client = client_config(options | {"wait_for_link": wait_for_link, "max_new_tokens": 1})  # requests say
    names = tuple(model_name or GatewayConfig().names)
    config = GatewayConfig(names, sessions, queue, max_new_tokens, key)
    serve(ServingConfig(client, config, host, port, profile, engine))


def _leave_to_requests(on_reconnect: OnReconnect | None, logprobs: int | None) -> None:
    """Raises UsageError for what every request says for itself."""
    if on_reconnect is not None:
        raise UsageError('on-reconnect: each request says so itself, with "outrider": {"unverified": ...}')
    if logprobs is not None:
        raise UsageError("logprobs: each request asks for them itself, with OpenAI's logprobs and top_logprobs")


def _api_key(key: str | None, file: Path | None) -> str | None:
    """Raises UsageError."""
    if file is None:
        return key
    if key is not None:
        raise UsageError("api-key and api-key-file: give one of them")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"api-key-file={file}: cannot be read ({error})") from error
