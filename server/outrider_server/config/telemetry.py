"""The configuration of metrics, logs and traces: one frozen value, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Metrics, logs and traces. Raises UsageError."""

    metrics_host: Annotated[str, Flag("Address on which metrics are served.", expert=True)] = "127.0.0.1"
    metrics_port: Annotated[
        int | None, Flag("Port for Prometheus metrics; 0 picks a free one. Default: no metrics.")
    ] = None
    log_format: Annotated[LogFormat, Flag("Log format: text, or json (one object per line).")] = "text"
    log_level: Annotated[
        LogLevel, Flag("Log level: debug, info (a line for every stream that ends), warning or error.")
    ] = "warning"
    otlp_endpoint: Annotated[
        str | None, Flag("OTLP/gRPC endpoint for traces, such as http://HOST:4317. Default: no traces.")
    ] = None

    def __post_init__(self) -> None:
        if self.metrics_port is not None and not 0 <= self.metrics_port < 2**16:
            raise UsageError(f"metrics_port={self.metrics_port}: need 0 (a free one) to {2**16 - 1}")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise UsageError(f"otlp_endpoint={self.otlp_endpoint}: need http://HOST:PORT, or https:// for TLS")
