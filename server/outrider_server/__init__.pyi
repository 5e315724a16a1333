from .config.config import LimitsConfig as LimitsConfig
from .config.config import SecurityConfig as SecurityConfig
from .config.config import ServerConfig as ServerConfig
from .config.config import TelemetryConfig as TelemetryConfig
from .config.file import load_config as load_config
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
