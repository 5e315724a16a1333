"""Pages of allowed origins may call the API, and nothing else; pages of all other sites are refused."""

from __future__ import annotations

import json

import pytest
from starlette.datastructures import Headers

from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.middleware import wrong_origin
from outrider_proto.errors import UsageError

APP = "http://localhost:3000"
OTHER = "http://evil.example"
BODY = json.dumps({"model": "outrider", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).encode()
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def allowing(start_gateway, server):
    """A gateway that an app of a site may call."""
    with start_gateway(server, GatewayConfig(allow_origins=(APP, "app://obsidian.md"))) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(start_gateway, server):
    """One that any site may call that has the key."""
    with start_gateway(server, GatewayConfig(api_key="k-1", allow_origins=("*",))) as running:
        yield running


def preflight(gateway, origin: str, path: str = CHAT, **headers):
    return gateway.request(
        "OPTIONS",
        path,
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type,x-outrider-mode,x-stainless-lang",
        **headers,
    )


@pytest.mark.parametrize("origin", [APP, "app://obsidian.md"])
def test_an_allowed_origin_may_ask(allowing, origin):
    asked = preflight(allowing, origin, Access_Control_Request_Private_Network="true")
    assert (asked.status, asked.headers["Access-Control-Allow-Origin"]) == (200, origin)
    assert "POST" in asked.headers["Access-Control-Allow-Methods"]
    assert "x-stainless-lang" in asked.headers["Access-Control-Allow-Headers"]
    assert asked.headers["Access-Control-Allow-Private-Network"] == "true"
    assert asked.headers["Access-Control-Allow-Credentials"] is None
    for body, status in ((BODY, 200), (b"{", 400)):
        answer = allowing.request("POST", CHAT, body, Origin=origin)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, origin)
        assert answer.headers["Access-Control-Expose-Headers"] == "Retry-After"
        assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("origin", "path"),
    [
        (OTHER, CHAT),
        ("null", CHAT),
        ("https://localhost:3000", CHAT),
        (f"{APP}.evil.example", CHAT),
        (APP, "/outrider/link"),
        (APP, "/metrics"),
        (APP, "/health"),
        (APP, "/"),
    ],
)
def test_other_origins_and_other_paths_are_refused(allowing, origin, path):
    for answer in (allowing.request("GET", path, Origin=origin), preflight(allowing, origin, path)):
        assert (answer.status, answer.error["code"]) == (403, "wrong_origin")
        assert answer.headers["Access-Control-Allow-Origin"] is None


def test_an_allowed_origin_does_not_open_another_host_name(allowing):
    for answer in (allowing.request("POST", CHAT, BODY, Origin=APP, Host="evil.example"),
                   preflight(allowing, APP, Host="evil.example")):  # fmt: skip
        assert (answer.status, answer.error["code"]) == (403, "wrong_host")
        assert answer.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("origin", [OTHER, "null"])
def test_any_origin_needs_the_key(guarded, origin):
    assert preflight(guarded, origin).headers["Access-Control-Allow-Origin"] == "*"
    for headers, status in (({"Authorization": "Bearer k-1"}, 200), ({"Authorization": "Bearer k-2"}, 401), ({}, 401)):
        answer = guarded.request("POST", CHAT, BODY, Origin=origin, **headers)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, "*")
    for path in ("/health", "/metrics", "/outrider/link"):
        assert guarded.request("GET", path, Origin=origin, Authorization="Bearer k-1").status == 403


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "http://a.example/", "http://A.example", "null", "http://*", "", "*"]
)
def test_an_origin_that_no_browser_sends_and_any_without_a_key(origin):
    with pytest.raises(UsageError, match="api-key-file" if origin == "*" else "scheme://host"):
        GatewayConfig(allow_origins=(origin,))
    assert GatewayConfig(allow_origins=("*",), api_key="k").allow_origins == ("*",)


BASE = "http://localhost:8000"
SITE, MODE, DEST = "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"
VISIT = {MODE: "navigate", DEST: "document"}
HEADERS = [  # of a request to a gateway at localhost:8000, and the code of its refusal
    ("/metrics", {}, None),
    ("/metrics", {"Origin": BASE}, None),
    ("/metrics", {SITE: "same-origin", "Origin": BASE}, None),
    ("/metrics", {SITE: "none"} | VISIT, None),
    *((path, {SITE: site, MODE: "no-cors", DEST: "image"}, "wrong_origin")
      for site in ("cross-site", "same-site", "other") for path in ("/metrics", "/outrider/link", "/v1/models", "/")),
    ("/metrics", {SITE: "cross-site"} | VISIT, "wrong_origin"),
    ("/", {SITE: "cross-site"} | VISIT, None),  # a link to the page
    ("/", {SITE: "cross-site", MODE: "navigate", DEST: "iframe"}, "wrong_origin"),
    ("/", {SITE: "cross-site", "Origin": "null"} | VISIT, "wrong_origin"),
    ("/v1/models", {SITE: "cross-site", "Origin": APP}, None),  # allowed
    ("/v1/models", {SITE: "cross-site", "Origin": OTHER}, "wrong_origin"),
    ("/v1/models", {SITE: "same-origin", "Origin": OTHER}, "wrong_origin"),
    ("/v1/models", {SITE: "none", "Origin": OTHER}, "wrong_origin"),
    ("/metrics", {"Origin": "https://localhost:8000"}, "wrong_origin"),
    ("/metrics", {"Origin": "https://localhost:8000", SITE: "same-origin"}, None),  # a proxy with TLS is in front
    *(("/metrics", {"Origin": origin}, "wrong_origin")
      for origin in ("null", "", "x://localhost:8000", "localhost:8000", "http://localhost", "http://localhost:80",
                     f"{BASE}/", f"{BASE}.evil.com", "http://evil.com@localhost:8000", "http://127.0.0.1:8000")),
    *(("/", {"Host": host}, None)
      for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "localhost.:8000")),
    *(("/", {"Host": host}, "wrong_host")
      for host in ("", "localhost:evil.com", "x://localhost", "evil.com", "evil.com:8000", "localhost:8000:1",
                   "localhost@evil.com", "localhost,evil.com", "localhost evil.com", "[::1", "[::1]evil.com", "::1",
                   "localhost:", "localhost/", "localhost:123456", "127.0.0.1.nip.io", "0.0.0.0", "2130706433",
                   "[::ffff:10.0.0.1]", "localhost#", "localhost:8000\t")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "headers", "code"), HEADERS)
def test_whose_requests_are_refused(path, headers, code):
    scope = {"path": path, "scheme": "http"}
    given = Headers({"Host": "localhost:8000"} | headers)
    refused = wrong_origin(scope, given, allowed=(APP,), only_loopback=True)
    assert (refused and (refused.status, refused.code)) == (code and (403, code))


@pytest.mark.parametrize(
    ("host", "code"), [("example.org", None), ("", None), ("10.0.0.1:8000", None), ("a:b", "wrong_host")]
)
def test_where_others_reach_it_only_the_form_of_a_host_counts(host, code):
    refused = wrong_origin({"path": "/", "scheme": "http"}, Headers({"Host": host}), allowed=(), only_loopback=False)
    assert (refused and refused.code) == code


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", ["/outrider/link", "/metrics", "/v1/models", "/health"])
def test_an_image_of_another_site_is_refused_by_the_gateway(gateway, path, site):
    assert gateway.request("GET", path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors").error["code"] == "wrong_origin"
