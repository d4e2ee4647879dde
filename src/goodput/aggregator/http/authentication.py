"""Authentication of aggregator requests: bearer tokens, session cookies, same-origin check, throttling.

Cookies permit reading, never pushing; tokens in URLs are ignored. Clients without a valid token from one address get
FAILURES_PER_MINUTE_MAX 401 answers a minute, then 429; a valid token is never throttled.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from urllib.parse import urlsplit

from starlette.types import Scope

from goodput.access.authentication import Authenticator, require_scope
from goodput.access.certificate import Certificate
from goodput.access.token_cache import Denied, TokenCache
from goodput.access.tokens import Access
from goodput.aggregator.http.headers import Headers, header_values
from goodput.aggregator.http.limits import FAILING_ADDRESSES_MAX, FAILURES_PER_MINUTE_MAX
from goodput.aggregator.http.request_metrics import RequestMetrics
from goodput.aggregator.http.sessions import Sessions

log = logging.getLogger("goodput.aggregator")

# Routes without authentication: they reveal nothing about any run.
PUBLIC_ROUTES = frozenset(("healthz", "login"))
# Routes that change an account; they require scope ingest.
INGEST_ROUTES = frozenset(("ingest", "end"))
PLAIN_COOKIE, SECURE_COOKIE = b"goodput-session", b"__Host-goodput-session"


class Refusal(Exception):
    """A refused request: the HTTP status, one word for the reason, and the text of the answer."""

    def __init__(self, status: int, reason: str, text: str):
        super().__init__(text)
        self.status, self.reason = status, reason


class RequestAuthenticator(Authenticator):
    """The checks of every request to the aggregator, with their counters in `metrics`."""

    def __init__(
        self,
        tokens: TokenCache | None = None,
        certificate: Certificate | None = None,
        *,
        hosts: tuple[str, ...] = (),
        any_host: bool = False,
        metrics_public: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(tokens, certificate, hosts=hosts, any_host=any_host)
        self.metrics = RequestMetrics()
        self.sessions = Sessions(tokens) if tokens else None
        self._public_routes = PUBLIC_ROUTES | {"metrics"} if metrics_public else PUBLIC_ROUTES
        self._throttle = Throttle(clock)

    def check_request(self, scope: Scope, route: str) -> Access | None:
        """The client's Access, None on a public route. Raises Refusal."""
        headers: Headers = scope["headers"]
        if route != "healthz":
            self._check_host(headers)
        if scope["method"] not in ("GET", "HEAD"):
            self._check_origin(headers)
        if route in self._public_routes:
            return None
        try:
            return self._access(headers, "ingest" if route in INGEST_ROUTES else "read", is_secure(scope))
        except Denied as denied:
            accepts_html = any(b"text/html" in value for value in header_values(headers, b"accept"))
            if route == "page" and scope["method"] == "GET" and accepts_html:
                # A browser without a session goes to the sign-in page; that is not a failure.
                raise Refusal(303, "login", "sign in") from None
            raise self.refusal(scope, denied) from None

    def refusal(self, scope: Scope, denied: Denied) -> Refusal:
        """The counted refusal; 429 for an address that keeps sending wrong tokens."""
        self.metrics.failures[denied.reason] += 1
        address = (scope.get("client") or ("",))[0]
        is_guess = denied.reason in ("malformed", "unknown")
        failures = self._throttle.count((address, is_guess))
        if is_guess and failures > FAILURES_PER_MINUTE_MAX:
            self.metrics.refused["throttled"] += 1
            return Refusal(
                429, "throttled", "too many failed attempts from this address; try again in a minute"
            )
        if failures == 1:
            log.warning("refused %s: %s (further failures this minute are only counted)", address, denied)
        return Refusal(denied.status, denied.reason, str(denied))

    def _access(self, headers: Headers, scope: str, secure: bool) -> Access:
        authorizations = header_values(headers, b"authorization")
        if (
            self.sessions
            and not authorizations
            and scope == "read"
            and (cookie := cookie_of(headers, secure))
        ):
            access = self.sessions.access(cookie)
            require_scope(access, scope)
            return access
        return self.authenticate(authorizations, scope)

    def _check_host(self, headers: Headers) -> None:
        try:
            self.check_host([value.decode("latin-1") for value in header_values(headers, b"host")])
        except Denied as denied:
            self.metrics.refused["host"] += 1
            raise Refusal(denied.status, denied.reason, str(denied)) from None

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests from other sites' pages. Browsers send one of these headers; programs need not."""
        sites, origins = header_values(headers, b"sec-fetch-site"), header_values(headers, b"origin")
        if sites:
            is_same = sites in ([b"same-origin"], [b"none"])
        elif origins:
            hosts = header_values(headers, b"host")
            origin = urlsplit(origins[0].decode("latin-1")).netloc.lower()
            is_same = len(origins) == len(hosts) == 1 and origin == hosts[0].decode("latin-1").lower()
        else:
            return
        if not is_same:
            self.metrics.refused["origin"] += 1
            raise Refusal(403, "origin", "cross-site request: it came from another site's page")


class Throttle:
    """Counts failures by key, in the minute that began with the first; the oldest keys are evicted."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._failures: OrderedDict[Hashable, list] = OrderedDict()  # key -> [end of its minute, failures]

    def count(self, key: Hashable) -> int:
        """Count one failure; the number in this minute."""
        now = self._clock()
        entry = self._failures.get(key)
        if entry is None or now >= entry[0]:
            self._failures.pop(key, None)
            while len(self._failures) >= FAILING_ADDRESSES_MAX:
                self._failures.popitem(last=False)
            entry = self._failures[key] = [now + 60.0, 0]
        entry[1] += 1
        return entry[1]


def cookie_of(headers: Headers, secure: bool) -> bytes | None:
    """The session cookie. Browsers accept a `__Host-` cookie only over TLS, so nothing else can have set it."""
    prefix = (SECURE_COOKIE if secure else PLAIN_COOKIE) + b"="
    cookies = [part.strip() for value in header_values(headers, b"cookie") for part in value.split(b";")]
    return next((cookie[len(prefix) :] for cookie in cookies if cookie.startswith(prefix)), None)


def is_secure(scope: Scope) -> bool:
    """Whether the browser uses TLS, to us or according to a proxy. Selects the kind of cookie, nothing else."""
    return scope["scheme"] == "https" or header_values(scope["headers"], b"x-forwarded-proto") == [b"https"]
