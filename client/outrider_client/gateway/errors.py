"""Errors in OpenAI's format, with their HTTP status."""

from __future__ import annotations

import logging
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from outrider_client.connection.diagnosis import TrustError
from outrider_client.gateway.request_bodies import FORMS, RequestBody
from outrider_proto.errors import LinkError, OutriderError, Reason, Refusal, UsageError, is_transient

_log = logging.getLogger(__name__)
_INVALID = "invalid_request_error"
NO_JSON_OBJECT = "body: need a JSON object, and Content-Type: application/json"
_NUMBER = re.compile(r"[0-9]{1,10}")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,39}")  # as parameters have them
_OWN_NAME = "<name>"
_TEMPLATE = "the chat template does not take these messages"
_QUOTING = re.compile(r"\s*(?::|\(|[\"'`\[{])")
_SAID_OF_SCHEMAS = {
    "Pointer": "leads nowhere in the schema ($ref)",
    "Resource": "leads out of the schema ($ref, $schema)",
}
# fmt: off
_SCHEMA_KEYWORDS = frozenset({
    "$anchor", "$defs", "$dynamicRef", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf",
    "anyOf", "const", "contains", "definitions", "dependencies", "dependentRequired", "dependentSchemas", "else",
    "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength",
    "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then",
    "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})
# fmt: on
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


def unknown_model(names: Sequence[str]) -> ApiError:
    message = (
        f"model: there is none of that name: choose one of {', '.join(names)}, or start the gateway with --any-model"
    )
    return ApiError(404, message, param="model", code="model_not_found")


def bad_schema(param: str, why: str) -> ApiError:
    """`why`: in the words of the library that compiles schemas, which quotes them. Its keywords are no content."""
    words = _QUOTING.split(why.strip(), maxsplit=1)[0]
    keywords = dict.fromkeys(word for word in re.findall(r"[\"'`]([$\w]+)[\"'`]", why) if word in _SCHEMA_KEYWORDS)
    where = f" ({', '.join(keywords)})" if keywords else ""
    return ApiError(400, f"{param}: {_SAID_OF_SCHEMAS.get(words, words)}{where}", param=param)


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
            return ApiError(400, _TEMPLATE if str(error).startswith(_TEMPLATE) else str(error))
        case Refusal(reason=Reason.CONTEXT_FULL):
            return ApiError(400, str(error), param="messages", code="context_length_exceeded")
        case Refusal(reason=Reason.BAD_SAMPLING):  # whose message may quote a schema
            message = "the server refused: it cannot follow response_format, tools, a penalty or a bias"
            return ApiError(502, message, "server_error", code="bad_sampling")
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
    """Report the first of pydantic's errors by its place: the value there, and names that an app makes up, may be
    private."""
    error = errors[0]
    is_unknown = error["type"] == "extra_forbidden"
    parts = [str(part) for part in error["loc"] if part not in FORMS]
    last = parts.pop() if is_unknown else None
    shown = [part if part in _parameters() or _NUMBER.fullmatch(part) else _OWN_NAME for part in parts]
    if last is not None:
        shown.append(last if _NAME.fullmatch(last) else _OWN_NAME)
    where = ".".join(shown)
    match error["type"]:
        case "extra_forbidden":
            return ApiError(400, f"{where}: no such parameter", param=where, code="unknown_parameter")
        case "unsupported_parameter":
            name = error["ctx"]["name"]
            where = f"{where}.{name}" if where else name
            return ApiError(400, f"{where}: {error['msg']}", param=where, code="unsupported_parameter")
        case _ if not where:
            return ApiError(400, NO_JSON_OBJECT)
        case _:
            return ApiError(400, f"{where}: {_words(error)}", param=where)


@cache
def _parameters() -> frozenset[str]:
    """The names of all parameters."""
    kinds, names = [RequestBody], set[str]()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        names.update(field.alias or name for name, field in kind.model_fields.items())
    return frozenset(names)


def _words(error: Mapping[str, Any]) -> str:
    match error["type"]:
        case "too_long":
            return f"at most {error['ctx']['max_length']} are allowed, not {error['ctx']['actual_length']}"
        case "too_short":
            return f"need at least {error['ctx']['min_length']}"
        case _:
            return str(error["msg"])
