"""The ratio rules against the aggregator's own account of the same windows, over one simulated run.

Two ranks of four GPUs step, save, evaluate, wait for each other, die twice, lose work and go on. Every twenty seconds
the account is computed and its series are scraped at the same time, so that only the arithmetic differs. promtool
evaluates the shipped rules over these samples. In a real cluster a scrape sees an account that is up to a push and a
scrape old (15 s of 300 as shipped, 5 %), and both agree within that.
"""

import subprocess
from types import SimpleNamespace

import pytest
import yaml
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report
from support.dashboards.rules_pruned import pruned
from support.servers.servers import require

from goodput.account import compute
from goodput.account.states import INDEX, STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store

# A token that reads all runs, without the aggregator's own series.
RUNS = SimpleNamespace(may=lambda run: True, is_of_all=False)
EVERY, START, RANKS, STALE = 20, 1000, 2, 1e6
SERIES = ("goodput_gpu_seconds", "goodput_availability_ratio", "goodput_mfu_ratio")
PLANNED = ("queue", "startup", "restore", "compile", "checkpoint", "evaluation", "rollout", "unobserved")
DECLARED = {"world_size": RANKS, "devices": 4, "flops_per_step": 1e15, "peak_flops_per_second": 1e15}
TOLERANCE = 1e-3
# Seconds of the run at which rules and account are compared, by the content of the last five minutes.
QUIET = (200, 600, 900, 1200, 1560, 2700, 3600, 4200)
WITHIN = (2080, 2100)  # a restart, and all the work that it lost
BEYOND = (3000, 3120)  # a restart that lost work from before them


class Simulation:
    """The store, its clock, the samples of every scrape, and the accounts of the compared windows."""

    def __init__(self):
        self.store, self.now = Store(), START
        health = HealthLog()
        accounts = Accounts(
            self.store, history=History(None), stall_seconds=60.0, stale_seconds=STALE, age_seconds=0.0
        )
        accounts.account = lambda name, now_ns=None, of=accounts.account: of(name, ns(self.now))
        self._exposition = Exposition(
            accounts,
            Ingest(self.store, None, health=health),
            HealthCosts(health, accounts),
            None,
            clock_ns=lambda: ns(self.now),
        )
        self.samples: list[dict[str, float]] = []
        self.accounts: dict[tuple[int, int], object] = {}

    def scrape(self, *processes: Process, since: int) -> None:
        """The processes report new rows, the series are scraped, and the accounts of windows that end now are computed."""
        for one in processes:
            fresh = [row for row in one.rows if row.end_ns > ns(since)]
            self.store.merge(rank_report(one, rows=fresh, events=one.events), ns(self.now))
        found = {}
        families = self._exposition.families(RUNS)
        for family in families:
            for sample in family.samples:
                if sample.name in SERIES:
                    state = f',state="{sample.labels["state"]}"' if "state" in sample.labels else ""
                    found[f'{sample.name}{{run="r1"{state}}}'] = sample.value
        self.samples.append(found)
        second = self.now - START
        if second in (*QUIET, *WITHIN, *BEYOND):
            for seconds in (300, 3600):
                window = (ns(self.now - seconds), ns(self.now))
                self.accounts[second, seconds] = compute(
                    self.store.runs["r1"], ns(self.now), stale_seconds=STALE, known_only=True, window=window
                )


def life(simulation: Simulation, number: int, resume: int | None, until: int, events: dict[int, dict]) -> int:
    """An attempt up to a second of the run; the last step that a checkpoint saved. `events` are phases by second."""
    ranks = [Process(r, number, simulation.now, **DECLARED) for r in range(RANKS)]
    for one in ranks:
        one.between(none=6, restore=4)
        if resume is not None:
            one.resumed(resume)
    committed = -1
    while True:
        since, simulation.now = simulation.now, simulation.now + EVERY
        # A scrape finds every rank between two steps: all durations divide the time between two scrapes.
        for one in ranks:
            while one.now_ns < ns(simulation.now):
                second = round(one.now_ns / 1e9) - START
                if second in events and one.now_ns % ns(1) == 0:
                    one.between(**events[second])
                    if "checkpoint" in events[second]:
                        one.saved()
                        committed = one.step_next - 1
                    continue
                slow = 0.25 if one.rank else 0.0
                one.step(loader=0.25, forward=0.5 + slow, backward=0.75, communication=0.5 - slow)
        if simulation.now - START >= until:
            for one in ranks:
                one.killed()
        simulation.scrape(*ranks, since=since)
        if simulation.now - START >= until:
            return committed


def gap(simulation: Simulation, seconds: int) -> None:
    for _ in range(seconds // EVERY):
        simulation.now += EVERY
        simulation.scrape(since=simulation.now)


@pytest.fixture(scope="module")
def simulation():
    """Save every five minutes or so; one death that loses 110 s, and one that loses 600 s."""
    one = Simulation()
    one.scrape(since=START)
    saved = {second: {"checkpoint": 10} for second in range(300, 1801, 300)}
    committed = life(one, 1, None, 1920, {**saved, 1000: {"evaluation": 60}})
    gap(one, 40)
    committed = life(one, 2, committed, 2900, {2290: {"checkpoint": 10}})
    gap(one, 60)
    life(one, 3, committed, 4220, {second: {"checkpoint": 10} for second in (3300, 3600, 3900)})
    return one


@pytest.fixture(scope="module")
def evaluate(simulation, tmp_path_factory):
    """Evaluates expressions at seconds of the run: {(second, expression): whether it is true}."""
    require("promtool")
    folder = tmp_path_factory.mktemp("parity")
    names = sorted(set().union(*simulation.samples))
    series = [
        {"series": name, "values": " ".join("_" if v is None else repr(v) for v in values)}
        for name in names
        for values in [[sample.get(name) for sample in simulation.samples]]
    ]

    def run(expected: list[tuple[int, str]]) -> str:
        cases = {
            "rule_files": ["../recording.yml"],
            "evaluation_interval": f"{EVERY}s",
            "tests": [
                {
                    "interval": f"{EVERY}s",
                    "input_series": series,
                    "promql_expr_test": [
                        {"expr": expr, "eval_time": f"{at}s", "exp_samples": [{"labels": "{}", "value": 1}]}
                        for at, expr in expected
                    ],
                }
            ],
        }
        path = folder / "parity.yml"
        path.write_text(yaml.safe_dump(cases, width=10_000))
        target = folder / "pruned"
        target.mkdir(exist_ok=True)
        done = subprocess.run(
            ["promtool", "test", "rules", str(pruned(path, target))],
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout + done.stderr if done.returncode else ""

    return run


def figures(account) -> dict[str, float]:
    """The values that the rules should have, from an account."""
    gpu = dict(zip(STATES, account.gpu_ns(), strict=True))
    steady = sum(ns for state, ns in gpu.items() if state not in PLANNED)
    found = {
        f"run:{name}:ratio": account.ratio(name)
        for name in ("goodput", "availability", "step_efficiency", "mfu")
    }
    found["run:steady_goodput:ratio"] = gpu["productive"] / steady
    wall = account.wall_gpu_ns()
    return found | {
        f'run:idle:share{{state="{state}"}}': gpu[state] / wall
        for state in STATES
        if state != "productive" and gpu[state]
    }


def rule(name: str, window: str) -> str:
    head, brace, rest = name.partition("{")
    return f"{head}_{window}{brace}{rest}"


def close(name: str, window: str, value: float) -> str:
    return f"sum(abs({rule(name, window)} - {value!r}) <= bool {TOLERANCE})"


def test_simulation_has_every_state(simulation):
    whole = compute(simulation.store.runs["r1"], ns(simulation.now), stale_seconds=STALE, known_only=True)
    gpu = whole.gpu_ns()
    for state in (
        "productive",
        "loader",
        "communication",
        "straggler",
        "checkpoint",
        "evaluation",
        "down",
        "lost",
    ):
        assert gpu[INDEX[state]] > 0, state
    assert [round(r.lost_gpu_ns / 8e9, -1) for r in whole.restarts] == [110, 600]


def test_rules_agree_with_account_without_earlier_lost_work(simulation, evaluate):
    cases = [
        (at, close(name, "5m", value))
        for at in (*QUIET, *WITHIN)
        for name, value in figures(simulation.accounts[at, 300]).items()
    ]
    # An hour holds both restarts and all that they lost; before it has passed, it is the whole life.
    cases += [
        (at, close(name, "1h", value))
        for at in (1200, 2700, 3600)
        for name, value in figures(simulation.accounts[at, 3600]).items()
        if "idle" not in name
    ]
    assert len(cases) > 100
    assert evaluate(cases) == ""


def test_rule_is_lower_with_earlier_lost_work(simulation, evaluate):
    """600 s were lost, most of them before the five minutes: the rule charges all of it to the window."""
    cases = []
    for at in BEYOND:
        found = figures(simulation.accounts[at, 300])
        for name in ("goodput", "steady_goodput", "availability", "mfu"):
            value = found[f"run:{name}:ratio"]
            cases.append((at, f"sum(run:{name}:ratio_5m <= bool {value + TOLERANCE})"))
            cases.append((at, f"sum(run:{name}:ratio_5m < bool {value - 0.01})"))
        cases.append((at, "sum(run:goodput:ratio_5m + on (run) sum by (run) (run:idle:share_5m))"))
    assert evaluate(cases) == ""


def test_factors_of_a_window_multiply(evaluate):
    product = (
        "run:availability:ratio_5m * on (run) run:step_efficiency:ratio_5m - on (run) run:goodput:ratio_5m"
    )
    assert evaluate([(at, f"sum(abs({product}) < bool 1e-9)") for at in (*QUIET, *WITHIN)]) == ""


def test_disagreement_is_detected(simulation, evaluate):
    value = simulation.accounts[600, 300].ratio("goodput") + 2 * TOLERANCE
    assert "FAILED" in evaluate([(600, close("run:goodput:ratio", "5m", value))])
