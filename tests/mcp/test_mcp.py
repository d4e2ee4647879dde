"""`goodput mcp` by the official client, over an aggregator on its real HTTP server with a token."""

import asyncio
import json
import sys
import time

import pytest
from support.account.account_history import Process
from support.aggregator.reports import health_event, rank_report, story
from support.aggregator.serve_process import serving
from support.servers.tokens import add

pytest.importorskip("mcp", reason="the MCP SDK is not installed")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from goodput.access.token_cache import TokenCache
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.cli import main
from goodput.mcp import comparison, summaries
from goodput.mcp.read_api import ApiError, ReadApi
from goodput.mcp.server import server_of
from goodput.mcp.tools import TOOLS, unix_seconds
from goodput.wire import schema
from goodput_exporters.push.credentials import Credentials

SLASHED = "team/a"


class Site:
    """A running aggregator with runs r1, r2, hanging and one with a slash, and files with tokens."""

    def __init__(self, client, folder, reader: str):
        self.client, self.url, self.token_file = client, str(client.base_url), folder / "reader"
        self.token_file.write_text(reader)
        self.agent_file = folder / "agent"
        self.headers = {"Authorization": f"Bearer {reader}"}

    def api(self) -> ReadApi:
        return ReadApi(self.url, Credentials(token_file=str(self.token_file)))

    def document(self, path: str) -> dict:
        return self.client.get(f"/api/v1/{path}", headers=self.headers).json()

    def ask(self, tool: str, **arguments):
        """The tool's answer, or the text of its error."""
        return asyncio.run(_ask(self.api(), tool, arguments))


async def _ask(api: ReadApi, tool: str, arguments: dict):
    async with Client(server_of(api)) as client:
        found = await client.call_tool(tool, arguments)
    api.close()
    return found.content[0].text if found.is_error else found.structured_content


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    agent, reader = add(folder / "tokens", "agent", "ingest"), add(folder / "tokens", "reader", "read")
    authenticator = RequestAuthenticator(TokenCache(folder / "tokens"))
    app = create_app(f"sqlite:///{folder}/ledger.db", authenticator=authenticator, stale_seconds=3600.0)
    with serving(app) as client:  # No rank becomes unobserved where the tests before take long.
        found = Site(client, folder, reader)
        found.agent_file.write_text(agent)
        now = time.time()
        stuck = [Process(r, 1, now - 400).steps(4, forward=1).begun(communication=380) for r in range(2)]
        reports = [
            *story(start=now - 60),
            *story("r2", start=now - 50),
            [rank_report(one, "hanging", world_size=2) for one in stuck],
            [rank_report(Process(0, 1, now - 30).steps(3, forward=1).finished(), SLASHED)],
        ]
        for ranks in reports:
            report = schema.NodeReport("n", time.time_ns(), ranks, health=[health_event(1, now - 20, 0)])
            answer = client.post(
                "/api/v1/ingest", content=schema.encode(report), headers={"Authorization": f"Bearer {agent}"}
            )
            assert answer.status_code == 200, answer.text
        yield found


def test_assistant_asks_over_stdio(site):
    """As an assistant starts it: a process, initialization, the list of tools, one question, the end of input."""

    async def conversation():
        arguments = ["-m", "goodput", "mcp", "--url", site.url, "--token-file", str(site.token_file)]
        command = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(stdio_client(command)) as client:
            tools = (await client.list_tools()).tools
            return tools, await client.call_tool("list_runs", {"search": "r1"})

    tools, answer = asyncio.run(conversation())
    assert [tool.name for tool in tools] == list(TOOLS)
    assert all(tool.description and tool.output_schema for tool in tools)
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in tools)
    (row,) = answer.structured_content["runs"]
    assert (row["run"], row["status"], row["restarts"], row["leading_cause"]) == ("r1", "finished", 1, "lost")
    assert json.loads(answer.content[0].text) == answer.structured_content


def test_account_is_that_of_the_api(site):
    found, expected = site.ask("get_account", run="r1"), site.document("runs/r1")
    hours = {one["state"]: one["gpu_hours"] for one in found["states"]}
    seconds = {state: value for state, value in expected["states"].items() if value}
    assert hours == pytest.approx({state: value / 3600 for state, value in seconds.items()}, rel=1e-5)
    assert sum(hours.values()) == pytest.approx(found["gpu_hours"], rel=1e-5)
    assert list(hours.values()) == sorted(hours.values(), reverse=True)
    for factor in ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu"):
        assert found[factor] == pytest.approx(expected["factors"][factor], rel=1e-5)
    assert (found["steps_kept"], found["steps_lost"]) == (32, 8)


def test_rows_have_what_the_rows_of_the_api_have(site):
    """Cost, GPUs and the culprit, as the page shows them."""
    rows = {one["run"]: one for one in site.ask("list_runs")["runs"]}
    expected = {one["run"]: one for one in site.document("runs")["runs"]}
    assert rows.keys() == expected.keys()
    for run, row in rows.items():
        one = expected[run]
        assert (row["gpus"], row["without_gpus"]) == (one["gpus"], one["is_on_cpu"])
        assert row["dollars"] == (one["cost"] and pytest.approx(one["cost"], rel=1e-5))
        assert row["culprit"] == one["culprit"]
    priced = dict(
        expected["r1"], cost=12.5, is_on_cpu=True, culprit={"rank": None, "host": "n\x1b7", "stage": 3}
    )
    row = summaries.run_row(priced)
    assert (row.dollars, row.without_gpus) == (12.5, True)
    assert (row.culprit.rank, row.culprit.host, row.culprit.stage) == (None, "n 7", 3)
    earlier = {
        name: value for name, value in expected["r1"].items() if name not in ("gpus", "is_on_cpu", "culprit")
    }
    assert summaries.run_row(earlier).culprit is None


def test_account_says_why_a_run_failed(site):
    expected = site.document("runs/r1")
    assert site.ask("get_account", run="r1")["failure"] is None
    failure = {"rank": 3, "host": "n0", "step": 31, "text": "ValueError: no\x1b[31m", "committed_step": None,
               "steps_since_checkpoint": None}  # fmt: skip
    found = summaries.account({**expected, "failure": failure, "cost": {"total": 7.0, "states": {}}})
    assert (found.failed_rank, found.failed_step, found.failure) == (3, 31, "ValueError: no [31m")
    assert found.dollars == 7.0
    unknown = summaries.account({**expected, "failure": {**failure, "text": "", "step": None}})
    assert (unknown.failed_rank, unknown.failed_step, unknown.failure) == (3, None, None)


def test_window_by_its_last_minutes_or_times(site):
    whole = site.document("runs/r1")
    last = site.ask("get_account", run="r1", last_minutes=0.1)
    start = summaries.iso(whole["end"] - 6)
    by_time = site.ask("get_account", run="r1", start=start)
    window = site.document(f"runs/r1/account?start={whole['end'] - 6}&end={whole['end']}")
    assert last["gpu_hours"] * 3600 == pytest.approx(24, rel=1e-3) == window["gpu_seconds"]
    assert last["goodput"] == pytest.approx(window["factors"]["goodput"], rel=1e-5)
    assert by_time["start"] == start and last["hangs"] is None
    assert "last_minutes excludes start and end" in site.ask("get_account", run="r1", start=0, last_minutes=1)


def test_causes_come_in_the_order_to_act(site):
    found, expected = site.ask("get_causes", run="r1"), site.document("runs/r1")
    assert [one["state"] for one in found["causes"]] == expected["advice_order"]
    advice = {one["state"]: one["advice"] for one in expected["causes"]}
    assert all(one["advice"] == advice[one["state"]] for one in found["causes"])
    avoidable = {one["state"]: one["avoidable_gpu_seconds"] / 3600 for one in expected["causes"]}
    assert {one["state"]: one["avoidable_gpu_hours"] for one in found["causes"]} == pytest.approx(
        avoidable, rel=1e-5
    )


def test_stragglers_and_ranks(site):
    found = site.ask("get_stragglers", run="r1")
    assert (found["culprit"], found["culprit_host"], found["because"]) == (1, "n1", "loader")
    assert found["slow_issue"] is None
    rank = site.ask("get_rank", run="r1", rank=1)
    assert (rank["host"], rank["gpus"], rank["steps_kept"], rank["ended"]) == ("n1", 2, 16, "finished")
    assert site.ask("get_rank", run="r1", rank=7).endswith("run 'r1' has no report of rank 7")


def test_hang_says_what_ranks_do(site):
    found = site.ask("get_hang", run="hanging")
    assert found["hang"]["seconds"] > 300 and found["alive_ranks"] == 2
    assert [(one["phase"], one["ranks"]) for one in found["phases"]] == [("communication", 2)]
    assert site.ask("get_hang", run="r1")["hang"] is None
    assert [one["run"] for one in site.ask("list_runs")["runs"] if one["hangs"]] == ["hanging"]


def test_timeline_has_the_restart(site):
    found = site.ask("get_timeline", run="r1", points=5)
    assert len(found["buckets"]) == 5
    assert [one["kind"] for one in found["marks"]] == ["checkpoint", "restart", "checkpoint"]
    assert min(found["buckets"], key=lambda one: one["goodput"])["largest_loss"] == "lost"


def test_compared_states_sum_to_the_change(site):
    """r1 lasts 42.125 s for 16 kept steps; by hand, a slower second run of the same steps."""
    base = site.document("runs/r1/account")
    new = {**base, "run": "slow", "end": base["end"] + 16, "gpu_seconds": base["gpu_seconds"] + 64}
    new["states"] = {**base["states"], "loader": base["states"]["loader"] + 64}
    found = comparison.compare(base, new)
    assert (found.base_seconds_per_step, found.new_seconds_per_step) == (2.63281, 3.63281)
    assert found.states[0].state == "loader" and found.states[0].change_seconds == pytest.approx(1)
    assert sum(one.change_seconds for one in found.states) == pytest.approx(1, abs=1e-5)
    assert found.change_share == pytest.approx(16 / 42.125, rel=1e-5)
    assert any("only 16 steps" in note for note in found.notes)
    same = site.ask("compare_runs", base="r1", new="r2")
    assert same["change_share"] == 0 and "no confidence intervals" in same["notes"][0]


def test_story_is_that_of_the_api(site):
    found, expected = site.ask("get_story", run="r1"), site.document("runs/r1/story")
    assert [one["title"] for one in found["events"]] == [one["title"] for one in expected["events"]]
    assert found["omitted"] == 0 and found["pace"] == expected["pace"]
    (restart,) = [one for one in found["events"] if one["kind"] == "restart"]
    (truth,) = [one for one in expected["events"] if one["kind"] == "restart"]
    assert restart["gpu_hours"] * 3600 == pytest.approx(truth["gpu_seconds"], rel=1e-5)
    assert restart["claims"] == truth["claims"] and restart["time"].endswith("Z")
    assert "no run 'nothing'" in site.ask("get_story", run="nothing")


def test_story_of_many_events_is_short_and_keeps_the_costliest(site):
    found = site.document("runs/r1/story")
    event = {
        **found["events"][0],
        "title": "t" * 2000,
        "claims": [{"basis": "measured", "text": "c" * 2000}] * 30,
    }
    found["events"] = [{**event, "time": 1e9 + n, "gpu_seconds": n % 50 or None} for n in range(200)]
    answer = summaries.story({**found, "left_out": 7})
    assert len(answer.events) == summaries.LISTED_MAX and answer.omitted == 7 + 180
    costs = [one.gpu_hours * 3600 for one in answer.events]
    assert min(costs) > 44 and [one.time for one in answer.events] == sorted(
        one.time for one in answer.events
    )
    assert len(answer.model_dump_json()) < 60_000


def test_health_events_are_listed(site):
    (event,) = site.ask("list_health_events", run="r1")["events"]
    assert (event["kind"], event["ranks_hit"]) == ("xid", ["r1 rank 0"])
    assert site.ask("list_health_events", limit=1)["omitted"] == 0


def test_unknown_run_names_similar_ones(site):
    text = site.ask("get_causes", run="r")
    assert "no run 'r'; runs with that in their name:" in text and "'r1'" in text and "'r2'" in text
    assert "no run 'nothing'; the newest runs are" in site.ask("get_account", run="nothing")
    assert "no run '..'" in site.ask("get_account", run="..")


def test_names_with_slashes_and_control_characters(site):
    assert site.ask("get_account", run=SLASHED)["steps_kept"] == 3
    document = {**site.document("runs/r1"), "run": "a\x1b[31m\u202e"}
    assert summaries.stragglers(document).run == "a [31m "


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("get_account", {"run": "r1", "start": "yesterday"}, "start: 'yesterday' is no time such as"),
        ("get_account", {"run": "r1", "start": 2, "end": 1}, "start 2.0 is not before end 1.0"),
        ("get_account", {"run": ""}, "at least 1 character"),
        ("get_timeline", {"run": "r1", "points": 1000}, "less than or equal to 60"),
        ("list_runs", {"limit": 1000}, "less than or equal to 100"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(site, tool, arguments, text):
    assert text in site.ask(tool, **arguments)


def test_errors_say_what_to_do(site, tmp_path):
    ingest = ReadApi(site.url, Credentials(token_file=str(site.agent_file)))
    with pytest.raises(ApiError, match=r"HTTP 403: .*; the token needs the scope read"):
        ingest.get("/api/v1/runs")
    with pytest.raises(ApiError, match=r"HTTP 401: .*goodput mcp --token-file FILE"):
        ReadApi(site.url).get("/api/v1/runs")
    with pytest.raises(ApiError, match="refused"):
        ReadApi("http://127.0.0.1:1").get("/api/v1/runs")
    with pytest.raises(ApiError, match="not an aggregator"):
        site.api().get("/metrics")


def test_other_version_is_an_error_of_the_tool(site, monkeypatch):
    monkeypatch.setattr(ReadApi, "run", lambda *_args, **_named: {"run": "r1"})
    assert "unexpected answer of the aggregator (KeyError: 'checkpoints')" in site.ask(
        "get_account", run="r1"
    )


def test_answers_about_many_ranks_are_short(site):
    """Two thousand ranks, all suspects, slow and with a long name each: no answer grows with them."""
    ranks, found = range(2_000), site.document("runs/r1")
    name, zero = "n" * 1500, {"states": found["ranks"][0]["states"], "steps": {"kept": 1, "lost": 0}}
    slow = {
        "shares": [{"rank": r, "host": name, "share": 1e-4} for r in ranks],
        "hosts": [{"host": name, "share": 1e-4} for _ in ranks],
        "onsets": [
            {"rank": r, "attempt": 1, "first_step": 0, "last_step": None, "from_start": True} for r in ranks
        ],
    }
    found["straggler"] |= slow
    live = {
        "attempt": 1,
        "alive": True,
        "ended": "",
        "phase": "communication",
        "phase_seconds": 9.0,
        "step": 1,
        "step_seconds": 1.0,
        "report_age_seconds": 1.0,
    }
    found["live"] = [{**live, "rank": r, "host": name} for r in ranks]
    suspects = [
        {"rank": r, "host": name, "phase": "x", "seconds": 1.0, "step": 1, "kind": "dead"} for r in ranks
    ]
    hang = {"since": 1e9, "seconds": 9.0, "culprit": 0, "host": name, "phase": "x", "step": 1, "reason": name}
    found["hang"] = {**hang, "suspects": suspects, "victims": 1999, "stack": name * 9, "stack_rank": 0}
    found["ranks"] = [{**zero, "rank": r, "host": name, "devices": 1, "role": name} for r in ranks]
    for answer in (summaries.stragglers(found), summaries.hangs(found), summaries.rank(found, 1999)):
        assert len(answer.model_dump_json()) < 60_000
    assert summaries.stragglers(found).omitted == 3 * 1980
    assert len(summaries.hangs(found).hang.stack) == summaries.STACK_CHARS_MAX


def test_rank_whose_calls_are_slow_is_named(site):
    found, times = site.document("runs/r1"), {"seconds": 0.0512, "usual_seconds": 0.0002}
    found["straggler"]["slow_issue"] = {
        "rank": 3,
        "host": "n1",
        "group": "dp",
        "operation": "all_reduce",
        **times,
    }
    named = summaries.stragglers(found).slow_issue
    assert (named.rank, named.host, named.group, named.operation) == (3, "n1", "dp", "all_reduce")
    assert (named.seconds, named.usual_seconds) == (0.0512, 0.0002)
    del found["straggler"]["slow_issue"]  # as in a document of an earlier version
    assert summaries.stragglers(found).slow_issue is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-05-01T08:30:00Z", 1777624200),
        ("2026-05-01T10:30:00+02:00", 1777624200),
        ("2026-05-01", 1777593600),
        ("1777624200", 1777624200),
        (1777624200.5, 1777624200.5),
    ],
)
def test_times(text, seconds):
    assert unix_seconds("start", text) == seconds


def test_command_without_an_address(capsys, monkeypatch):
    monkeypatch.delenv("GOODPUT_AGGREGATOR", raising=False)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err == "goodput mcp: no aggregator: set --url or GOODPUT_AGGREGATOR\n"
