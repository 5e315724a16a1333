"""`outrider gateway`. Imports what serves HTTP only when it runs, since it is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from outrider_client.cli.interrupts import raise_on_interrupt
from outrider_client.cli.options import ClientOptions, with_models
from outrider_client.core.config import UNLIMITED, ClientConfig
from outrider_proto.errors import UsageError

KEY_VARIABLE = "OUTRIDER_API_KEY"
_OF_REQUESTS = {
    "on_reconnect": 'with "outrider": {"unverified": ...}',
    "logprobs": "with OpenAI's logprobs and top_logprobs",
}


def gateway_command(
    options: ClientOptions,
    host: Annotated[str, Option(help="Address to listen on. Any but loopback needs an API key.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 picks a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        Option(
            envvar=KEY_VARIABLE,
            help="Key that apps must send as bearer token. The environment variable hides it from other users.",
        ),
    ] = None,
    api_key_file: Annotated[Path | None, Option(help="File with the API key.")] = None,
    model_name: Annotated[
        list[str] | None,
        Option(help="Name that apps may give the model. Repeatable. Default: outrider, and the target's own name."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        Option(
            help="Site whose pages may call the API, as http://localhost:3000. Repeatable. * allows every site, and"
            " needs an API key. Default: none but the gateway's own page."
        ),
    ] = None,
    sessions: Annotated[int, Option(help="Largest number of answers written at once.")] = 4,
    queue: Annotated[int, Option(help="Largest number of requests that wait; more are refused.")] = 16,
    generation_config: Annotated[
        bool,
        Option(
            help="Where neither a request nor an option here says how to sample, do as the target's"
            " generation_config.json says."
        ),
    ] = True,
    unverified: Annotated[
        Literal["hold", "keep", "stream"],
        Option(
            help="What apps get of the drafter's text in an outage where a request does not say. hold: none before the"
            " target has verified it. keep: all, as it is. stream: all, and what replaces it."
        ),
    ] = "hold",
    profile: Annotated[
        str | None,
        Option(help="Emulate a link of this profile (paper-4g, ...) to the server; the page can then cut it."),
    ] = None,
    engine: Annotated[
        Literal["auto", "kernel", "tun", "proxy"], Option(help="What emulates the link; proxy needs no privileges.")
    ] = "auto",
) -> None:
    """Serve OpenAI's API on this device: /v1/chat/completions, /v1/completions, /v1/models; a chat page at /."""
    _refuse_what_requests_set(options)
    try:
        from outrider_client.gateway.gateway import GatewayConfig
        from outrider_client.gateway.serving import ServingConfig, serve
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'outrider[gateway]'") from error
    key = _api_key(api_key, api_key_file)
    client = with_models(options.config())
    if generation_config:
        client = _as_recommended(client, options)
    limit = None if client.max_new_tokens == UNLIMITED else client.max_new_tokens
    # Each request sets its own.
    client = client.for_answer(max_new_tokens=1, on_reconnect="verify", logprobs=None)
    names = tuple(model_name or GatewayConfig().names)
    config = GatewayConfig(names, sessions, queue, limit, unverified, key, tuple(allow_origin or ()))
    raise_on_interrupt()
    serve(ServingConfig(client, config, host, port, profile, engine))


def _refuse_what_requests_set(options: ClientOptions) -> None:
    for name, how in _OF_REQUESTS.items():
        if name in options.on_command_line:
            raise UsageError(f"{name}: each request sets it itself, {how}")


def _as_recommended(client: ClientConfig, options: ClientOptions) -> ClientConfig:
    """Sample as the target's generation_config.json says, where no option does."""
    from outrider_client.models.local_models import recommended_sampling

    recommended = recommended_sampling(client.target)
    return client.for_answer(**{name: value for name, value in recommended.items() if not options.says(name)})


def _api_key(key: str | None, file: Path | None) -> str | None:
    """The key from either option. Raises UsageError."""
    if file is None:
        return key
    if key is not None:
        raise UsageError("api-key and api-key-file: give one of them")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        # `from None`: the decoder's error quotes the file's bytes, which may be a key.
        raise UsageError(f"api-key-file={file}: cannot be read: {reason}") from None
