"""Access over HTTP: tokens, sessions, hosts, origins; the app on a real server in a thread."""

import html.parser
import http.client
import json
import logging
import re
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process, ns
from support.aggregator.reports import body_of, node_report, rank_report
from support.aggregator.serve_process import serving

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http import limits
from goodput.aggregator.http.authentication import RequestAuthenticator, Throttle
from goodput.aggregator.http.request_metrics import ROUTES
from goodput.wire import schema

RUNS = ("vision/a", "vision/b", "text/a", "x/account", "plain")


class Site:
    """A running aggregator with tokens of several kinds, a client without one, and bearers for all."""

    def __init__(self, client, cache, texts, application):
        self.client, self.cache, self.texts, self.app = client, cache, texts, application
        self.authenticator = application.state.authenticator

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.texts[name]}"}

    def get(self, path: str, name: str | None = "reader", **headers) -> httpx.Response:
        return self.client.get(path, headers={**(self.bearer(name) if name else {}), **headers})

    def raw(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The path as it stands: httpx would resolve it."""
        connection = http.client.HTTPConnection(
            self.client.base_url.host, self.client.base_url.port, timeout=60
        )
        try:
            connection.request("GET", path, headers=headers)
            return connection.getresponse()
        finally:
            connection.close()

    def push(self, name: str, *ranks, health=(), stacks=()) -> schema.Ack:
        report = schema.NodeReport("n", 0, list(ranks), stacks=list(stacks), health=list(health))
        answer = self.client.post("/api/v1/ingest", content=schema.encode(report), headers=self.bearer(name))
        assert answer.status_code == 200, answer.text
        return schema.decode_ack(answer.content)

    def samples(self, name: str = "reader") -> dict[tuple, float]:
        families = text_string_to_metric_families(self.get("/metrics", name).text)
        found = [sample for family in families for sample in family.samples]
        return {(s.name, *s.labels.values()): s.value for s in found}

    def failures(self, reason: str) -> float:
        return self.samples()["goodput_aggregator_auth_failures_total", reason]

    def refused(self, reason: str) -> float:
        return self.samples()["goodput_aggregator_requests_refused_total", reason]


def report_of(run: str, number: int = 0, **given):
    return rank_report(Process(number, 1, time.time() - 20, **given).steps(3, forward=1), run)


@pytest.fixture(autouse=True)
def _forgiven(request):
    """Resets the failure counts and cookies of earlier tests."""
    if "site" in request.fixturenames:
        found = request.getfixturevalue("site")
        found.authenticator._throttle = Throttle(time.monotonic)
        found.client.cookies.clear()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    kinds = {
        "agent": ("ingest", {}),
        "vision-agent": ("ingest", {"tenant": "vision"}),
        "reader": ("read", {}),
        "vision": ("read", {"tenant": "vision"}),
        "plain": ("read", {"runs": ("plain",)}),
        "metrics": ("metrics", {}),
        "old": ("read", {"expires": 5.0}),
    }
    made = {name: make(name, scope, **given) for name, (scope, given) in kinds.items()}
    path = folder / "tokens.json"
    with token_file.changing(path) as tokens:
        tokens += [token for _, token in made.values()]
    cache = TokenCache(path)
    application = create_app(f"sqlite:///{folder}/ledger.db", authenticator=RequestAuthenticator(cache))
    with serving(application) as client:
        found = Site(client, cache, {name: text for name, (text, _) in made.items()}, application)
        events = [
            schema.Health(
                1, "xid", "GPU-0", ns(time.time() - 15), severity="critical", hits=[("vision/a", 0)]
            ),
            schema.Health(2, "xid", "GPU-1", ns(time.time() - 15), hits=[("vision/a", 0), ("text/a", 0)]),
            schema.Health(3, "link_down", "mlx5_0", ns(time.time() - 15)),
        ]
        found.push("agent", *map(report_of, RUNS), health=events)
        yield found


# ---- Scopes of tokens


@pytest.mark.parametrize(
    ("path", "agent", "reader", "nobody"),
    [
        ("/healthz", 200, 200, 200),
        ("/login", 200, 200, 200),
        ("/login.css", 200, 200, 200),
        ("/", 403, 200, 401),
        ("/scripts/main.js", 403, 200, 401),
        ("/metrics", 403, 200, 401),
        ("/api/v1/runs", 403, 200, 401),
        ("/api/v1/runs/plain", 403, 200, 401),
        ("/api/v1/runs/plain/account", 403, 200, 401),
        ("/api/v1/runs/plain/rolling", 403, 200, 401),
        ("/api/v1/runs/plain/health", 403, 200, 401),
        ("/api/v1/health", 403, 200, 401),
        ("/api/v1/access", 403, 200, 401),
        ("/api/v1/openapi.json", 403, 200, 401),
        ("/api/v1/ingest", 405, 403, 401),
        ("/nothing", 403, 404, 401),
        ("/api/v1/nothing", 403, 404, 401),
        ("/docs", 403, 404, 401),
        ("//metrics", 403, 404, 401),
        ("/metrics/", 403, 404, 401),
        ("/api/v1/ingest/", 403, 404, 401),
        ("/%6detrics", 403, 200, 401),
        ("/healthz/../metrics", 403, 404, 401),
        ("/login/../metrics", 403, 404, 401),
        ("/login%2f..%2fmetrics", 403, 404, 401),
        ("/%2e%2e/%2e%2e/etc/passwd", 403, 404, 401),
    ],
)
def test_each_scope_opens_its_routes(site, path, agent, reader, nobody):
    # A token for agents' series opens nothing here, not even pushing.
    metrics = 403 if agent == 405 else agent
    for name, status in (("agent", agent), ("reader", reader), ("metrics", metrics), (None, nobody)):
        headers = site.bearer(name) if name else {}
        answer = site.raw(path, headers)
        assert answer.status == status, (path, name)
        if status == 401:
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "malformed"),
        ("Bearer", "malformed"),
        ("Basic dXNlcjpwYXNz", "malformed"),
        ("{token}", "malformed"),
        ("Bearer {token} x", "malformed"),
        ("Bearer {token}x", "malformed"),
        ("Bearer " + "9" * 20_000, "malformed"),
        (b"Bearer \xff\xfe\x80", "malformed"),
        ("Bearer goodput_read_000000000000_" + "0" * 64, "unknown"),
        ("Bearer {old}", "expired"),
    ],
)
def test_malformed_authorization_is_refused(site, value, reason):
    if isinstance(value, str):
        value = value.replace("{token}", site.texts["reader"]).replace("{old}", site.texts["old"]).encode()
    before = site.failures(reason)
    answer = site.client.get("/api/v1/runs", headers=[(b"Authorization", value)])
    assert answer.status_code == 401 and site.failures(reason) == before + 1
    assert set(answer.json()) == {"detail"} and "\n" not in answer.json()["detail"]


def test_two_authorization_headers_are_refused(site):
    both = [(b"Authorization", value.encode()) for value in site.bearer("reader").values()] * 2
    assert site.client.get("/api/v1/runs", headers=both).status_code == 401


def test_bearer_is_case_insensitive(site):
    assert site.get("/api/v1/runs", None, authorization=f"bearer  {site.texts['reader']}").status_code == 200


def test_token_in_url_or_form_is_ignored(site):
    token = site.texts["reader"]
    for name in ("token", "access_token", "authorization", "api_key"):
        assert site.client.get("/api/v1/runs", params={name: token}).status_code == 401
    assert (
        httpx.get(
            str(site.client.base_url).replace("//", f"//{token}@") + "/metrics", trust_env=False
        ).status_code
        == 401
    )
    assert site.client.get("/api/v1/runs", headers={"X-Api-Key": token}).status_code == 401
    assert site.client.get("/api/v1/runs", headers={"Cookie": f"goodput-session={token}"}).status_code == 401


# ---- Tokens limited to some runs


def test_scoped_reader_sees_only_its_runs(site):
    def names(name):
        return {run["run"] for run in site.get("/api/v1/runs", name).json()["runs"]}

    assert names("reader") == set(RUNS) and names("plain") == {"plain"}
    assert names("vision") == {"vision/a", "vision/b"}
    assert site.get("/api/v1/runs?limit=1", "vision").json()["total"] == 2
    for run in RUNS:
        name = run.replace("/", "%2F")
        assert site.get(f"/api/v1/runs/{name}").status_code == 200
        for behind in ("", "/account", "/rolling", "/health", "/timeline"):
            seen = site.get(f"/api/v1/runs/{name}{behind}", "plain" if run != "plain" else "vision")
            absent = site.get(f"/api/v1/runs/nowhere{behind}", "vision")
            assert seen.status_code == absent.status_code == 404
            assert seen.text.replace(run, "nowhere") == absent.text, "one cannot tell whether it exists"
    for path in ("/api/v1/runs/vision%2Fa", "/api/v1/runs/vision/b/health"):
        assert site.get(path, "vision").status_code == 200


def test_every_run_route_checks_access(site):
    """The routes are read from the app, so new ones are checked too."""
    routes = [
        route.path
        for route in site.app.routes
        if getattr(route, "path", "").startswith("/api/v1/runs/") and "GET" in route.methods
    ]
    assert len(routes) >= 4
    for path in routes:
        assert "{run:run}" in path, path
        assert site.get(path.replace("{run:run}", "plain"), "vision").json() == {"detail": "no run 'plain'"}


def test_scoped_reader_scrapes_only_its_runs(site):
    text = site.get("/metrics", "vision").text
    assert set(re.findall(r'run="([^"]*)"', text)) == {"vision/a", "vision/b"}
    own = set(re.findall(r"goodput_aggregator\w+", text)) - {"goodput_aggregator_series_timestamp_seconds"}
    assert not own, "the aggregator's own series tell of everybody's runs"
    assert set(re.findall(r'run="([^"]*)"', site.get("/metrics").text)) == set(RUNS)
    everything = site.samples()
    assert everything["goodput_aggregator_tokens", "read"] == 3, "one has expired"
    assert "goodput_aggregator_token_expiry_timestamp_seconds" not in {key[0] for key in everything}


def test_scoped_reader_sees_events_of_its_runs(site):
    def events(name, path="/api/v1/health"):
        return {event["number"]: event for event in site.get(path, name).json()["events"]}

    assert set(events("reader")) == {1, 2, 3} and set(events("vision")) == {1, 2} and not events("plain")
    assert events("vision")[2]["hits"] == [{"run": "vision/a", "rank": 0}]
    assert len(events("reader")[2]["hits"]) == 2
    assert not events("vision", "/api/v1/health?run=text/a")
    assert set(events("vision", "/api/v1/health?run=vision/a")) == {1, 2}


def test_scoped_agent_pushes_only_its_runs(site):
    now_ns = ns(time.time())
    before = site.samples()
    ack = site.push(
        "vision-agent",
        report_of("vision/c"),
        report_of("text/c"),
        report_of("vision/d"),
        health=[
            schema.Health(11, "xid", "GPU-0", now_ns, hits=[("vision/c", 0), ("text/a", 0)]),
            schema.Health(12, "xid", "GPU-0", now_ns, hits=[("text/a", 0)]),
            schema.Health(13, "link_down", "mlx5_0", now_ns),
        ],
        stacks=[schema.Stack(schema.StackRequest("text/a", 0, "n0", 1, 1), now_ns, "f")],
    )
    assert ack.accepted == 2
    (rejection,) = ack.rejected
    assert (rejection.run, rejection.reason) == ("text/c", "scope") and "vision-agent" in rejection.text
    assert {run["run"] for run in site.get("/api/v1/runs").json()["runs"]} == {*RUNS, "vision/c", "vision/d"}
    events = {event["number"]: event for event in site.get("/api/v1/health").json()["events"]}
    assert events[11]["hits"] == [{"run": "vision/c", "rank": 0}] and not {12, 13} & set(events)
    after = site.samples()
    moved = {key: value - before.get(key, 0) for key, value in after.items()}
    assert moved["goodput_aggregator_rank_rejections_total", "scope"] == 1
    assert moved["goodput_aggregator_health_dropped_total", "scope"] == 2
    assert moved["goodput_aggregator_stacks_total", "ignored"] == 0, "it was not even looked at"


def test_run_name_with_escaped_slashes(site):
    assert site.get("/api/v1/runs/x%2Faccount").json()["run"] == "x/account"
    assert site.get("/api/v1/runs/x%2faccount/account").json()["run"] == "x/account"
    assert site.get("/api/v1/runs/x/account").status_code == 404, "the account of a run named x"
    assert site.get("/api/v1/runs/vision/a").json()["run"] == "vision/a", "where nothing can be confused"
    assert site.get("/api/v1/runs/vision%2Fa%2525").status_code == 404
    assert site.get("/api/v1/runs/x%1Faccount").status_code in (200, 404)
    assert site.get("/api/v1/runs/%ff%fe").status_code == 404


def test_run_name_in_the_query(site):
    """Which browsers, clients and proxies leave as it is; a token sees no other run by it."""
    assert site.get("/api/v1/runs/-?run=x%2Faccount").json()["run"] == "x/account"
    assert site.get("/api/v1/runs/-/account?run=x%2Faccount&start=0").json()["run"] == "x/account"
    assert site.get("/api/v1/runs/vision%2Fa?run=vision/a").json()["run"] == "vision/a"
    for query in ("run=text%2Fa", "run=vision/a&run=nobody", "run=%2e%2e", "run=a%0Ab"):
        assert site.get(f"/api/v1/runs/-?{query}", "vision").status_code == 404, query
    assert site.get("/api/v1/runs/-?run=").status_code == 404


# ---- Browsers


class Form(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def sign_in(site, name: str, **headers) -> httpx.Response:
    return site.client.post("/login", data={"token": site.texts[name]}, headers=headers)


def test_session_from_sign_in_to_sign_out(site):
    site.client.cookies.clear()
    requested = site.get("/", None, accept="text/html,*/*")
    assert (requested.status_code, requested.headers["location"]) == (303, "login")
    assert site.get("/scripts/main.js", None, accept="*/*").status_code == 401
    form = Form()
    form.feed(site.get("/login", None).text)
    assert ("form", {"method": "post", "action": "login"}) in form.tags
    (field,) = [given for tag, given in form.tags if tag == "input"]
    assert (field["name"], field["type"]) == ("token", "password")
    answer = sign_in(site, "vision", origin=str(site.client.base_url))
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={12 * 3600}"):
        assert part in cookie, cookie
    assert "Secure" not in cookie and site.texts["vision"] not in cookie
    assert site.get("/", None, accept="text/html").status_code == 200
    assert {run["run"][:6] for run in site.get("/api/v1/runs", None).json()["runs"]} == {"vision"}
    who = site.get("/api/v1/access", None).json()
    assert who == {"name": "vision", "scopes": ["read"], "runs": ["vision/*"], "session": True}
    assert site.get("/api/v1/access").json()["session"] is False
    assert site.samples()["goodput_aggregator_sessions",] == 1
    assert site.client.post("/api/v1/ingest", content=b"").status_code == 401, "a cookie pushes nothing"
    held = dict(site.client.cookies)
    out = site.client.post("/logout")
    assert (out.status_code, out.headers["location"]) == (303, "login") and not site.client.cookies
    site.client.cookies.update(held)
    assert site.get("/api/v1/runs", None).status_code == 401, "the cookie is worth nothing any more"
    site.client.cookies.clear()


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [("agent", 401, "does not read runs"), ("old", 401, "expired"), ("<script>alert(1)</script>", 401, "not a goodput token"),
     ("", 401, "Enter a token"), ("goodput_read_000000000000_" + "0" * 64, 401, "unknown or was revoked"), ("ü" * 5000, 401, "not a goodput token")],
)  # fmt: skip
def test_failed_sign_in_explains_without_echo(site, token, status, words):
    answer = site.client.post("/login", data={"token": site.texts.get(token, token)})
    assert answer.status_code in (status, 403) and words in answer.text and "set-cookie" not in answer.headers
    assert "<script>" not in answer.text and site.texts.get(token, "\0") not in answer.text


def test_malformed_form_is_refused(site):
    for body in (
        b"\xff\xfe",
        b"token",
        b"a=1&" * 50,
        b"x" * 100_000,
        json.dumps({"token": site.texts["reader"]}).encode(),
    ):
        assert site.client.post("/login", content=body).status_code in (401, 429)


def test_cross_site_requests_are_refused(site):
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert sign_in(site, "reader", **headers).status_code == 403
        answer = site.client.post("/api/v1/ingest", content=b"x", headers={**site.bearer("agent"), **headers})
        assert answer.status_code == 403 and "another site" in answer.text
    site.client.cookies.clear()
    assert (
        sign_in(
            site, "reader", **{"sec-fetch-site": "same-origin", "origin": "https://what-a-proxy-hid"}
        ).status_code
        == 303
    )
    site.client.cookies.clear()


def test_cookie_is_secure_behind_a_tls_proxy(site):
    site.client.cookies.clear()
    cookie = sign_in(site, "reader", **{"x-forwarded-proto": "https"}).headers["set-cookie"]
    assert cookie.startswith("__Host-goodput-session=") and "Secure" in cookie
    value = cookie.partition(";")[0]
    site.client.cookies.clear()
    assert site.get("/api/v1/runs", None, cookie=value, **{"x-forwarded-proto": "https"}).status_code == 200
    assert site.get("/api/v1/runs", None, cookie=value).status_code == 401


def test_revoked_token_ends_its_sessions(tmp_path):
    text, token = make("reader", "read")
    path = tmp_path / "tokens.json"
    with token_file.changing(path) as tokens:
        tokens.append(token)
    cache = TokenCache(path)
    with serving(
        create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=RequestAuthenticator(cache))
    ) as client:
        assert client.post("/login", data={"token": text}).status_code == 303
        assert client.get("/api/v1/runs").status_code == 200
        with token_file.changing(path) as tokens:
            tokens.clear()
        end = time.monotonic() + 10
        while client.get("/api/v1/runs").status_code == 200:
            assert time.monotonic() < end, "the running aggregator looks at the file every second"
            time.sleep(0.05)
        assert client.get("/api/v1/runs").status_code == 401


# ---- Too many failures


def test_only_wrong_tokens_are_throttled(site, monkeypatch, caplog):
    monkeypatch.setattr(site.authenticator, "_throttle", Throttle(lambda: 0.0))
    wrong = {"authorization": "Bearer goodput_read_000000000000_" + "0" * 64}
    before = site.refused("throttled")
    with caplog.at_level(logging.WARNING, "goodput.aggregator"):
        statuses = [site.get("/api/v1/runs", None, **wrong).status_code for _ in range(40)]
    assert statuses == [401] * 30 + [429] * 10 and site.refused("throttled") == before + 10
    assert len(caplog.records) == 1, "a flood of failures is no flood of lines"
    assert site.get("/api/v1/runs").status_code == 200 and sign_in(site, "reader").status_code == 303
    site.client.cookies.clear()
    limited = site.get("/metrics", None, **wrong)
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "60")
    assert (
        sign_in(site, "agent").status_code == 403
        and site.client.post("/login", data={"token": "x"}).status_code == 429
    )
    # A page that is left open over the end of its session keeps polling, and has to show that it needs a sign-in.
    for _ in range(40):
        assert site.get("/api/v1/runs", None, cookie="goodput-session=old").status_code == 401
        assert site.get("/api/v1/runs", None).status_code == 401


def test_failure_counts_are_bounded_and_expire():
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for number in range(3 * limits.FAILING_ADDRESSES_MAX):
        throttle.count(f"address {number}")
    assert len(throttle._failures) == limits.FAILING_ADDRESSES_MAX
    assert [throttle.count("a") for _ in range(3)] == [1, 2, 3]
    now[0] = 60.0
    assert throttle.count("a") == 1


def test_sessions_are_bounded_per_token_and_total(tmp_path, monkeypatch):
    from goodput.access.responses import Refusal
    from goodput.aggregator.http import sessions as module

    made = [make(f"n{number}", "read") for number in range(4)]
    path = tmp_path / "tokens.json"
    with token_file.changing(path) as tokens:
        tokens += [token for _, token in made]
    cache, now = TokenCache(path), [0.0]
    monkeypatch.setattr(module, "SESSIONS_MAX", 6)
    monkeypatch.setattr(module, "SESSIONS_PER_TOKEN_MAX", 3)
    sessions = module.Sessions(cache, clock=lambda: now[0])
    accesses = [cache.lookup(text.encode()) for text, _ in made]
    first = sessions.begin(accesses[0])
    cookies = [sessions.begin(accesses[1]) for _ in range(5)]
    assert len(sessions) == 4 and sessions.access(first.encode()).name == "n0", (
        "sessions of other tokens are kept"
    )
    assert sessions.access(cookies[-1].encode()).name == "n1"
    for cookie in (cookies[0], "nonsense", ""):
        with pytest.raises(Refusal):
            sessions.access(cookie.encode())
    for access in accesses[2:]:
        sessions.begin(access), sessions.begin(access)
    assert len(sessions) == 6
    now[0] = limits.SESSION_SECONDS
    with pytest.raises(Refusal):
        sessions.access(cookies[-1].encode())
    assert len(sessions) == 0


# ---- Without tokens


@pytest.fixture(scope="module")
def open_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    with serving(
        create_app(
            f"sqlite:///{folder}/ledger.db", authenticator=RequestAuthenticator(hosts=("head.example",))
        )
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9471", 200), ("127.0.0.1", 200), ("[::1]:9471", 200), ("LOCALHOST", 200), ("head.example:80", 200),
     ("evil.example", 421), ("evil.example:9471", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421),
     ("", 421), ("[::1", 200), ("evil.example/127.0.0.1", 421), ("127.0.0.1@evil.example", 421)],
)  # fmt: skip
def test_loopback_server_checks_the_host_header(open_site, host, status):
    """Otherwise a web page whose DNS name is rebound to 127.0.0.1 could read everything."""
    for path in ("/api/v1/runs", "/metrics", "/"):
        assert open_site.get(path, headers={"host": host}).status_code == status
    assert open_site.get("/healthz", headers={"host": host}).status_code == 200


def test_loopback_refuses_cross_site_pushes(open_site):
    body = body_of(report_of("r1"))
    url = str(open_site.base_url)
    for headers, status in (
        ({}, 200),
        ({"origin": url}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site", "content-type": "text/plain"}, 403),
    ):
        assert open_site.post("/api/v1/ingest", content=body, headers=headers).status_code == status


def test_sign_in_redirects_without_tokens(open_site):
    for answer in (
        open_site.get("/login"),
        open_site.post("/login", data={"token": "x"}),
        open_site.post("/logout"),
    ):
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert open_site.get("/api/v1/access").json()["session"] is False


# ---- Response headers


def test_every_response_has_security_headers(site):
    requested = [("GET", path) for path in ("/", "/login", "/scripts/main.js", "/metrics", "/healthz", "/nothing", "/api/v1/runs",
             "/api/v1/runs/nothing", "/api/v1/health?limit=x")]  # fmt: skip
    for method, path in [
        *requested,
        ("POST", "/api/v1/ingest"),
        ("DELETE", "/api/v1/runs"),
        ("POST", "/logout"),
    ]:
        for name in ("reader", "agent", None):
            headers = site.bearer(name) if name else {}
            answer = site.client.request(method, path, headers=headers)
            found = answer.headers
            assert found["x-content-type-options"] == "nosniff" and found["x-frame-options"] == "DENY", path
            assert found["content-security-policy"].startswith("default-src 'none'"), path
            assert found["referrer-policy"] == "no-referrer" and "server" not in found
            is_ours = path in ("/", "/scripts/main.js") and answer.status_code == 200
            assert found["cache-control"] == ("no-cache" if is_ours else "no-store"), path
            assert "strict-transport-security" not in found
            script = "script-src" in found["content-security-policy"]
            assert script == (answer.headers.get("content-type", "").startswith("text/html") or is_ours)


def test_internal_errors_keep_security_headers(tmp_path, monkeypatch):
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")

    @app.get("/api/v1/broken")
    async def broken():
        raise RuntimeError("a secret")

    with serving(app) as client:
        answer = client.get("/api/v1/broken")
        assert answer.status_code == 500 and answer.text == "internal error; see the aggregator's log\n"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (
            'goodput_aggregator_requests_total{code="500",route="other"} 1.0' in client.get("/metrics").text
        )


# ---- Counters


def test_requests_are_counted_by_fixed_routes(site):
    for _ in range(50):
        site.client.get("/healthz")
    for path in ("/a", "/b", "/api/v1/runs/q1", "/api/v1/runs/q2", "/api/v9/x", "/x/y/z"):
        site.get(path)
    site.client.request("BREW", "/api/v1/runs", headers=site.bearer("reader"))
    found = site.samples()
    routes = {
        key[2] if key[1].isdigit() else key[1]
        for key in found
        if key[0] == "goodput_aggregator_requests_total"
    }
    assert routes <= set(ROUTES)
    counted = {
        key: value for key, value in found.items() if key[0] == "goodput_aggregator_request_seconds_count"
    }
    total = sum(value for key, value in found.items() if key[0] == "goodput_aggregator_requests_total")
    assert sum(counted.values()) == total > 50


def test_reports_of_ingest_are_bounded(site, monkeypatch):
    headers = site.bearer("agent")
    packed = site.client.post("/api/v1/ingest", content=b"x", headers={**headers, "content-encoding": "gzip"})
    assert packed.status_code == 415 and "Content-Encoding" in packed.text
    reported = http.client.HTTPConnection(site.client.base_url.host, site.client.base_url.port, timeout=60)
    reported.putrequest("POST", "/api/v1/ingest")
    for name, value in {**headers, "Content-Length": str(schema.BODY_BYTES_MAX + 1)}.items():
        reported.putheader(name, value)
    reported.endheaders()
    assert reported.getresponse().status == 413, "what says that it is too large is not waited for"
    reported.close()
    monkeypatch.setattr(limits, "BODIES_BYTES_MAX", 100)
    sizes = (60, 200, 60, 60)  # What was read, or refused, is given back.
    statuses = [
        site.client.post("/api/v1/ingest", content=bytes(n), headers=headers).status_code for n in sizes
    ]
    assert statuses == [400, 503, 400, 400]
    monkeypatch.undo()
    assert (
        site.client.post("/api/v1/ingest", content=schema.encode(node_report()), headers=headers).status_code
        == 200
    )
    assert (site.refused("encoding"), site.refused("busy")) == (1, 1) and site.refused("body") >= 1
