"""Start and stop of metrics and traces. Libraries are imported only for what is configured."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Thread, Timer
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from outrider_proto.errors import UsageError
from outrider_server.config.config import TelemetryConfig
from outrider_server.telemetry.logs import AccessLog
from outrider_server.telemetry.observer import ObserverGroup, ServerObserver, ServerStats

if TYPE_CHECKING:
    from outrider_server.telemetry.metrics import ServerMetrics
    from outrider_server.telemetry.traces import Traces


_SCRAPES = 16  # at once
_SCRAPE_S = 10.0


class TelemetryReporter:
    """`observer` goes to the verifier; start() and stop() go with the server."""

    def __init__(self, config: TelemetryConfig) -> None:
        """Raises UsageError for what is not installed."""
        self._config = config
        self._metrics: ServerMetrics | None = None
        self._traces: Traces | None = None
        if config.metrics_port is not None:
            from outrider_server.telemetry.metrics import ServerMetrics

            self._metrics = ServerMetrics()
        if config.otlp_endpoint is not None:
            from outrider_server.telemetry.traces import Traces

            self._traces = Traces(config.otlp_endpoint)
        self._http: tuple[WSGIServer, Thread] | None = None
        self.observer: ServerObserver = ObserverGroup([AccessLog(), *filter(None, (self._metrics, self._traces))])

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT once started; None without metrics."""
        return None if self._http is None else f"{self._config.metrics_host}:{self._http[0].server_port}"

    def start(self, stats: Callable[[], ServerStats]) -> None:
        """Serve metrics. Raises UsageError when the address is taken or not ours."""
        config = self._config
        if self._metrics is None or config.metrics_port is None:
            return
        from prometheus_client import make_wsgi_app

        try:
            server = _ScrapeServer(config.metrics_host, config.metrics_port)
        except OSError as error:
            where = f"{config.metrics_host}:{config.metrics_port}"
            raise UsageError(f"metrics: cannot listen on {where}: {error.strerror}; give another port") from error
        server.set_app(make_wsgi_app(self._metrics.registry))
        thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        self._http = (server, thread)
        self._metrics.collect_stats(stats)

    async def stop(self) -> None:
        """Send what is left to send. Safe to call twice."""
        http, self._http = self._http, None
        if http is not None:
            await asyncio.to_thread(_close, *http)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # Any: as the library has it
        """Log nothing: whoever reaches the port could fill the log."""


class _ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread a scrape, for a bounded number of them and a bounded time: prometheus_client's own has neither bound."""

    daemon_threads = True
    request_queue_size = 128  # not the library's 5, behind which others wait for seconds

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError when the address is taken or not ours."""
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._open: dict[socket.socket, Timer] = {}  # with the end of their time
        super().__init__((host, port), _SilentHandler)

    def process_request(
        self, request: Any, client_address: Any
    ) -> None:  # Any: as the library has them, here and below
        # A scrape takes milliseconds, so that the oldest is one that says nothing.
        if len(self._open) >= _SCRAPES:
            oldest = next(iter(self._open))
            self._forget(oldest)
            _hang_up(oldest)
        # Of the whole scrape: with a timeout of each read, a byte now and then would keep the thread.
        deadline = self._open[request] = Timer(_SCRAPE_S, _hang_up, (request,))
        deadline.daemon = True
        deadline.start()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def _forget(self, request: socket.socket) -> None:
        if (deadline := self._open.pop(request, None)) is not None:
            deadline.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a scraper that hangs up is none of ours."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _close(server: WSGIServer, thread: Thread) -> None:
    # In a thread: shutdown() blocks until the request under way has ended.
    server.shutdown()
    server.server_close()
    thread.join()
