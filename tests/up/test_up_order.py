"""A server starts only when the server it needs is ready."""

import sys

from support.servers import servers

from goodput.up import server_plan, stack

SLOW = """
import http.server, sys, time
time.sleep(0.5)  # as a program that takes a while to import what it needs
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
# Asks once, as the agent's first push does, and answers with what came of it from then on.
EAGER = """
import urllib.request
try:
    found = str(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/").status)
except OSError as error:
    found = str(error)
open(sys.argv[3], "w").write(found)
""" + SLOW.split("\n", 3)[3]


def test_part_dependencies_exist(tmp_path, monkeypatch):
    first, second = servers.free_ports(2)
    found = tmp_path / "found"
    eager = "import http.server, sys\n" + EAGER
    planned = [
        server_plan.Server("aggregator", [sys.executable, "-c", SLOW, str(first)], first, "/"),
        server_plan.Server(
            "node",
            [sys.executable, "-c", eager, str(second), str(first), str(found)],
            second,
            "/",
            after="aggregator",
        ),
    ]
    monkeypatch.setattr(stack, "plan", lambda options: (planned, {}))
    with stack.Stack(server_plan.Options(data=tmp_path / "data", pages="pages")) as one:
        one.start()
        assert found.read_text() == "200"


def test_agent_starts_after_the_aggregator(tmp_path):
    planned, _ = server_plan.plan(
        server_plan.Options(data=tmp_path, pages="pages", prometheus=False, grafana=False, free_ports=True)
    )
    assert [(server.name, server.after) for server in planned] == [("aggregator", ""), ("node", "aggregator")]
