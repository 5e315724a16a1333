"""Errors in OpenAI's format, with their HTTP status."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from outrider_client.connection.diagnosis import TrustError
from outrider_client.gateway.request_bodies import FORMS
from outrider_proto.errors import LinkError, OutriderError, Reason, Refusal, UsageError, is_transient

_log = logging.getLogger(__name__)
_INVALID = "invalid_request_error"
_RETRY_S = 5.0  # where nobody can tell: a link that is down is probed every second


class ApiError(Exception):
    """An error response. `param` names the parameter at fault. `retry_after_s`: when the same request may succeed."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = _INVALID,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(max(math.ceil(retry_after_s), 1))}

    @property
    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    message = f"model {name!r} does not exist: choose one of {', '.join(names)}, or start the gateway with --any-model"
    return ApiError(404, message, param="model", code="model_not_found")


def server_unreachable(why: str) -> ApiError:
    return ApiError(503, why, "server_error", code="server_unreachable", retry_after_s=_RETRY_S)


def api_error(error: Exception) -> ApiError:
    """Map the app's mistakes to 400, the server's refusals to 502 or 503, link errors to 503, our faults to 500."""
    match error:
        case ApiError():
            return error
        case TrustError():
            return ApiError(502, str(error), "server_error", code="no_trust")
        case UsageError():
            return ApiError(400, str(error))
        case Refusal(reason=Reason.CONTEXT_FULL):
            return ApiError(400, str(error), param="messages", code="context_length_exceeded")
        case Refusal() if is_transient(error):
            code, retry_after_s = error.reason.name.lower(), error.retry_after_s or _RETRY_S
            return ApiError(503, str(error), "server_error", code=code, retry_after_s=retry_after_s)
        case Refusal():
            return ApiError(502, f"the server refused: {error}", "server_error", code=error.reason.name.lower())
        case LinkError():
            return server_unreachable(str(error))
        case OutriderError():
            return ApiError(500, str(error), "server_error")
        case _:
            # Where, but not what: the error's own message may quote private text.
            frames = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a request failed by a fault of the gateway: %s\n%s", type(error).__name__, frames)
            return ApiError(500, f"the gateway failed ({type(error).__name__}): see its log", "server_error")


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> ApiError:  # Any: pydantic's description of each
    """Report the first of pydantic's errors."""
    # Only the location and the message: the input itself may be private.
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"][1:] if part not in FORMS)
    match error["type"]:
        case "json_invalid":
            return ApiError(400, f"body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}")
        case "extra_forbidden":
            return ApiError(400, f"{where}: no such parameter", param=where, code="unknown_parameter")
        case "unsupported_parameter":
            name = error["ctx"]["name"]
            where = f"{where}.{name}" if where else name
            return ApiError(400, f"{where}: {error['msg']}", param=where, code="unsupported_parameter")
        case _ if not where:
            return ApiError(400, "body: need a JSON object, and Content-Type: application/json")
        case _:
            return ApiError(400, f"{where}: {_words(error)}", param=where)


def _words(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "too_long":
            return f"at most {error['ctx']['max_length']} are allowed, not {error['ctx']['actual_length']}"
        case "too_short":
            return f"need at least {error['ctx']['min_length']}"
        case _:
            return str(error["msg"])
