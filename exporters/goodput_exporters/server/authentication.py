"""Authentication of requests to the agent: /metrics needs a token of scope metrics or read that covers all runs."""

from __future__ import annotations

from collections import Counter

from goodput.access.authentication import Authenticator
from goodput.access.responses import Refusal
from goodput.metrics import Families

REASONS = ("missing", "malformed", "unknown", "expired", "scope", "host")


class NodeAuthenticator(Authenticator):
    """The checks of the agent's server, with a counter of what they refused."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def check_request(self, hosts: list[str], authorizations: list[str]) -> None:
        """Raise Refusal, unless these headers of a request allow it to read all series."""
        try:
            self.check_host(hosts)
            values = [value.encode("latin-1", "replace") for value in authorizations]
            access = self.authenticate(values, "metrics", "read")
            if not access.is_of_all:
                text = f"token {access.name} is limited to some runs; these series cover all runs"
                raise Refusal("scope", text)
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
            raise

    def collect(self, families: Families) -> None:
        files = self.reloaded_files
        errors = sum(one.errors for one in files.values())
        families.add("goodput_node_token_reload_errors_total", {}, errors)
        failing = {name: name in files and files[name].is_failing for name in ("tokens", "certificate")}
        families.add_counts("goodput_node_reload_failing", "file", failing)
        expiry = self.certificate.expiry if self.certificate else None
        families.add("goodput_node_certificate_expiry_timestamp_seconds", {}, expiry)
        families.add_counts("goodput_node_requests_refused_total", "reason", self._refused)
