from .core.processes import ServerProcess as ServerProcess
from .core.report import provenance as provenance
from .core.report import write_report as write_report

__all__ = ["ServerProcess", "provenance", "write_report"]
