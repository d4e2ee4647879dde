"""What a page says of the data loader: as series of the agent, and in the report by which the account gives advice."""

from support.node.node_rank import Rank
from support.node.node_tree import MS, samples

from goodput.account import compute
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain
from goodput.metrics import Families
from goodput.rank_page import page
from goodput.rank_page.loader_words import LOADER, WORKER
from goodput.wire import schema

FIGURES = {
    "batches": 9, "ready": 4, "starved": 5, "starts": 2, "start_ns": 100 * MS, "left_out": 3, "wait_ns": 1000 * MS,
    "wait_storage_ns": 600 * MS, "wait_decode_ns": 100 * MS, "wait_queue_ns": 200 * MS, "workers": 2, "main": 1,
}  # fmt: skip
WORKED = {
    "starts": 1, "startup_ns": 10 * MS, "batches": 4, "idle_ns": 20 * MS, "dataset_ns": 300 * MS, "cpu_ns": 100 * MS,
    "delay_ns": 50 * MS, "collate_ns": 60 * MS, "waited_ns": 70 * MS,
}  # fmt: skip


def with_loader(rank: Rank, place: int = 1 << 32 | 1 << 16 | 1) -> Rank:
    for name, value in FIGURES.items():
        rank.words[page.W_LOADER + LOADER.index(name)] = value
    for slot in (0, 3):
        for name, value in {"place": place if slot else 1 << 32 | 1, **WORKED}.items():
            rank.words[page.W_WORKERS + slot * page.WORKER_WORDS + WORKER.index(name)] = value
    return rank


def exposed(ranks) -> dict:
    families = Families("node")
    ranks.poll()
    ranks.collect(families)
    return {key: value for key, value in samples(families).items() if key[0].startswith("goodput_loader")}


def test_series_of_the_loader(tree, ranks):
    rank = with_loader(Rank(tree / "pages"))
    rank.step({"loader": 200 * MS})
    found = exposed(ranks)
    of_rank = (("rank", "0"), ("run", "r1"))
    by_label = lambda labels: tuple(text for _, text in sorted((*of_rank, *labels)))  # noqa: E731
    value = lambda name, *labels: found[f"goodput_loader_{name}", by_label(labels)]  # noqa: E731
    assert value("batches_total") == 9 and value("ready_batches_total") == 4
    assert value("starved_batches_total") == 5 and value("iterators_total") == 2
    assert value("iterator_seconds_total") == 0.1 and value("workers") == 2
    assert value("workers_unmeasured_total") == 3
    reasons = {
        "storage": 0.6,
        "decode": 0.1,
        "queue": 0.2,
        "collate": 0,
        "cpus": 0,
        "startup": 0,
        "unknown": 0.1,
    }
    for reason, seconds in reasons.items():
        assert value("wait_seconds_total", ("reason", reason)) == seconds
    for worker in "01":
        who = ("loader", "1"), ("worker", worker)
        assert value("worker_batches_total", *who) == 4
        assert value("worker_waited_seconds_total", *who) == 0.07
        for part, seconds in {
            "storage": 0.15,
            "decode": 0.1,
            "cpus": 0.05,
            "collate": 0.06,
            "idle": 0.02,
        }.items():
            assert value("worker_seconds_total", *who, ("part", part)) == seconds
    assert len(found) == 7 + 7 + 2 * (2 + 6)


def test_a_rank_without_a_loader_has_no_such_series(tree, ranks):
    Rank(tree / "pages").step({"loader": 200 * MS})
    assert exposed(ranks) == {}


def test_a_worker_that_is_there_twice_is_shown_once(tree, ranks):
    with_loader(Rank(tree / "pages"), place=1 << 32 | 1).step({"loader": 200 * MS})
    assert len(exposed(ranks)) == 7 + 7 + 2 + 6


def test_the_report_brings_it_to_the_account(tree, ranks):
    """Page, report, wire, store, account: the advice names what the wait was for."""
    rank = with_loader(Rank(tree / "pages"))
    rank.step({"loader": 200 * MS, "forward": 100 * MS})
    report = ranks.poll()[0]
    assert report.live.loader["worker_dataset_ns"] == 600 * MS and "inside" not in report.live.loader
    body = schema.encode(schema.NodeReport("n0", 1, [report]))
    received = schema.decode(body).ranks[0]
    schema.check(received)
    store = Store()
    store.merge(received, 0)
    (run,) = store.runs.values()
    account = compute(run, report.live.now_ns)
    assert account.loader.total["wait_storage_ns"] == 600 * MS
    advice = next(cause["advice"] for cause in explain(account) if cause["state"] == "loader")
    assert "55 % of the wait is workers blocked on storage or network" in advice
