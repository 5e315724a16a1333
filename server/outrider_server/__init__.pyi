from .config.config import LimitsConfig as LimitsConfig
from .config.config import ServerConfig as ServerConfig
from .config.file import load_config as load_config
from .config.security import SecurityConfig as SecurityConfig
from .config.telemetry import TelemetryConfig as TelemetryConfig
from .engine.target import Target as Target
from .rpc.server import Server as Server
from .sessions.verifier import Verifier as Verifier

__all__ = [
    "LimitsConfig",
    "SecurityConfig",
    "Server",
    "ServerConfig",
    "Target",
    "TelemetryConfig",
    "Verifier",
    "load_config",
]
