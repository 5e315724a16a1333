"""Start and stop of metrics and traces. Libraries are imported only for what is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from outrider_proto.errors import UsageError
from outrider_server.config.config import TelemetryConfig
from outrider_server.telemetry.logs import AccessLog
from outrider_server.telemetry.observer import ObserverGroup, ServerObserver, ServerStats

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from outrider_server.telemetry.metrics import ServerMetrics
    from outrider_server.telemetry.traces import Traces


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
        from prometheus_client import start_http_server

        try:
            self._http = start_http_server(config.metrics_port, config.metrics_host, self._metrics.registry)
        except OSError as error:
            where = f"{config.metrics_host}:{config.metrics_port}"
            raise UsageError(f"metrics: cannot listen on {where}: {error.strerror}; give another port") from error
        self._metrics.collect_stats(stats)

    async def stop(self) -> None:
        """Send what is left to send. Safe to call twice."""
        http, self._http = self._http, None
        if http is not None:
            await asyncio.to_thread(_close, *http)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)


def _close(server: WSGIServer, thread: Thread) -> None:
    # In a thread: shutdown() blocks until the request under way has ended.
    server.shutdown()
    server.server_close()
    thread.join()
