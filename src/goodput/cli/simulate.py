"""`goodput simulate`: a cluster that is not there, and whether the stack reports it truly."""

from __future__ import annotations

import json
import time

from goodput.cli import fail, message, number
from goodput.cli.node import FILES, add_aggregator_options, url
from goodput.cli.parsing.progress_line import ProgressLine

DESCRIPTION = """Push the reports of a simulated cluster to an aggregator: runs with loader waits, slow ranks and stages,
hangs, kills, restarts, and reports that are lost, late or repeated, as a scenario file says or made from a seed.
With --check compare what the aggregator reports with what was planted; the exit status is 1 outside of the tolerances."""
EPILOG = """examples:
  goodput simulate --check                                a random cluster, checked on an aggregator of its own
  goodput simulate --check --seed 7 --seeds 5 --ranks 64  five of them, made from the seeds 7 to 11
  goodput simulate --check --seeds 50 --results mixed.jsonl   fifty, of which those in the file are not simulated again
  goodput simulate scenario.toml --aggregator http://127.0.0.1:9471 --truth truth.json    in real time
  goodput simulate --check http://127.0.0.1:9471 --seed 7 --ranks 16 --seconds 900        in real time, and checked
"""
RANKS, SECONDS, SECONDS_MIN = 256, 1500.0, 600.0
SEEDS_MAX, RANKS_MAX = 1000, 100_000
OWN = "an aggregator of its own"
SUFFIXES = (".toml", ".json")


def add_options(parser) -> None:
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", nargs="?",
        help="a scenario in TOML or JSON (docs/simulate.md); without one it is made from the seed")  # fmt: skip
    add(
        "--seed", type=number(int, 0, 2**31), default=0, metavar="N", help="seed of the scenario (default: 0)"
    )
    add("--seeds", type=number(int, 1, SEEDS_MAX), default=1, metavar="COUNT",
        help="with --check: so many scenarios, from consecutive seeds (default: 1)")  # fmt: skip
    add("--ranks", type=number(int, 1, RANKS_MAX), default=RANKS, metavar="N",
        help="ranks of a random scenario (default: %(default)s)")  # fmt: skip
    add("--seconds", type=number(float, SECONDS_MIN, 86_400, " seconds"), default=SECONDS, metavar="S",
        help="length of a random scenario, at least 600 (default: %(default)g)")  # fmt: skip
    add("--innocent", action="store_true", help="a random scenario without slow ranks, slow stages and hangs")
    add("--check", metavar="URL[,URL...]", nargs="?", const=OWN, type=_checked,
        help="compare with the truth what the aggregator at URL reports, in real time; of several over a stream: the URL to "
        "push to, and then those of all aggregators; without URL one is started on a free port with a temporary ledger, in "
        "simulated time")  # fmt: skip
    add_aggregator_options(add, "push to it in real time (default: $GOODPUT_AGGREGATOR)")
    add("--results", metavar="FILE",
        help="with --check and seeds: append each seed's comparison to FILE, and do not simulate again what it has")  # fmt: skip
    add("--truth", metavar="FILE", help="write what was planted, as JSON")
    add("--save", metavar="FILE", help="write the scenario as JSON, to change it and simulate it again")
    add("--json", action="store_true", help="print the comparison as JSON; without --check, the truth")


def _checked(text: str) -> str:
    if text != OWN and not text.endswith(SUFFIXES):
        for one in text.split(","):
            url(one)
    return text


def call(arguments) -> int:
    from goodput.simulate.check.results import ResultsError
    from goodput.simulate.check.stack import StackError
    from goodput.simulate.scenario_file import ScenarioError

    if arguments.check and arguments.check.endswith(SUFFIXES) and not arguments.scenario:
        arguments.scenario, arguments.check = arguments.check, OWN  # `--check FILE`
    target = arguments.check or arguments.aggregator
    if target is None:
        return fail("simulate", "name an aggregator (--aggregator URL), or use --check for one of its own", 2)
    if (arguments.seeds > 1 or arguments.results) and (arguments.scenario or not arguments.check):
        return fail("simulate", "--seeds and --results: only with --check and without a scenario", 2)
    outcome, reports = None, []
    try:
        if arguments.truth:
            open(arguments.truth, "a").close()  # which fails now, and not after all was simulated
        if arguments.check:
            reports = _compare_seeds(arguments, target)
        else:
            outcome = _play(arguments, target, arguments.seed)
    except (ScenarioError, ResultsError) as error:
        return fail("simulate", error, 2)
    except StackError as error:
        return fail("simulate", error)
    except OSError as error:
        return fail("simulate", f"{error.filename}: {error.strerror}")
    if outcome is None:
        return _report(arguments, reports)
    if arguments.json:
        print(json.dumps(outcome.truth))
    return 0


def _compare_seeds(arguments, target: str) -> list:
    """The comparison of each seed's scenario; those that the file of results has are not played."""
    from importlib.metadata import version

    from goodput.simulate.check.comparison import compare
    from goodput.simulate.check.results import Result, Results

    results = Results(arguments.results) if arguments.results else None
    reports = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        key = (seed, arguments.ranks, arguments.seconds, arguments.innocent)
        known = results and results.find(key)
        if known is None:
            began = time.monotonic()
            report = compare(_play(arguments, target, seed))
            took = time.monotonic() - began
            known = Result(*key, took, version("goodput-telemetry"), report)
            if results:
                results.add(known)
            if arguments.seeds > 1:
                problems = "; ".join([*report.failures, *report.notes]) or "as planted"
                message("simulate", f"seed {seed}, after {took:.0f} s: {problems}")
        reports.append(known.report)
    return reports


def _play(arguments, target: str, seed: int):
    """The outcome of one scenario; its truth is written first."""
    from goodput.simulate.check.simulation import play_alone, play_to
    from goodput_exporters.push.credentials import Credentials

    scenario = _scenario(arguments, seed)
    name = arguments.scenario or f"seed {seed}"
    with ProgressLine(f"{name}: simulated seconds") as line:
        progress = lambda now, pushes: line(now, scenario.seconds)  # noqa: E731
        if target == OWN:
            outcome = play_alone(scenario, _serve, progress)
        else:
            files = {option[2:].replace("-", "_"): option for option in FILES}
            credentials = Credentials(**{name: getattr(arguments, name) for name in files})
            outcome = play_to(scenario, target.split(","), credentials, progress, watch=bool(arguments.check))
    if arguments.truth:
        _write(arguments.truth, outcome.truth)
    return outcome


def _scenario(arguments, seed: int):
    import msgspec

    from goodput.simulate.random_scenario import random_scenario
    from goodput.simulate.scenario_file import check, load

    if arguments.scenario:
        scenario = load(arguments.scenario)
    else:
        scenario = random_scenario(seed, arguments.ranks, arguments.seconds, arguments.innocent)
        check(scenario)
    if arguments.save:
        _write(arguments.save, msgspec.to_builtins(scenario))
    return scenario


def _write(path: str, document: dict) -> None:
    with open(path, "w") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def _serve(listener, ledger: str, clock_ns) -> None:
    """Run an aggregator on a simulated clock."""
    from goodput.aggregator.api.app import create_app
    from goodput.aggregator.clock import SteadyClock
    from goodput.cli.serve import server_of

    app = create_app(ledger, clock=SteadyClock(clock_ns, clock_ns), always_fresh=True)
    server_of(app).run(sockets=[listener])


def _report(arguments, reports: list) -> int:
    from goodput.simulate.check.comparison import text, together

    report = together(reports)
    print(json.dumps(report.document(), indent=1) if arguments.json else text(report))
    return 1 if report.failures else 0
