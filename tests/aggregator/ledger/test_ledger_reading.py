"""Reading one run: every row once and in order, windows, bounded memory, indices."""

import random
import tracemalloc

import numpy as np
import pytest
import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, astuple, replace
from support.account.account_history import Process, ns
from support.aggregator.ledgers import NOW, database, records_of
from support.aggregator.reports import rank_report, story

from goodput.aggregator import records
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import block_reader, inspection
from goodput.aggregator.ledger.blocks import step_rows
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.records import NewBlock, NewRecords
from goodput.wire import schema
from goodput.wire.packed_rows import pack
from goodput.wire.step_blocks import NUMBER, encode_rows


def one_of(steps: int, run: str = "r1", rank: int = 0, **parts) -> schema.RankReport:
    return rank_report(Process(rank, start=100).steps(steps, **(parts or {"forward": 1})), run=run)


def append(ledger, report: schema.RankReport, *chunks) -> None:
    """One transaction for each chunk, as pushes bring them."""
    bare = replace(report, steps=[], events=[])
    for rows in chunks:
        ledger.append([records_of(bare, rows)])


def test_runs_and_processes_are_oldest_first(ledger):
    assert ledger.runs() == [] and ledger.processes("r1") == []
    store = Store()
    for name, start in (("late", 3000), ("early", 500), ("between", 1500)):
        pushes = story(name, start=start)
        ledger.append([store.merge(report, ns(9000)) for push in pushes for report in push])
    assert ledger.runs() == ["early", "between", "late"]
    processes = ledger.processes("between")
    assert [(p.identity.rank, p.identity.attempt) for p in processes] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    for process in processes:
        assert process.steps == [] and process.events == []
        attempt = store.runs["between"].attempts[process.identity.rank, process.identity.attempt]
        assert list(map(astuple, ledger.rows(process.identity))) == attempt.ordered_rows()
        assert ledger.events(process.identity) == [attempt.events[n] for n in sorted(attempt.events)]
        assert process.live.ended == attempt.ended
    assert ledger.processes("no such run") == []


def test_sources_are_what_processes_reported(ledger):
    """In the same order, with the same rows."""
    for rank in range(3):
        one = Process(rank, start=100 - rank).steps(2 + rank, forward=1)
        if rank == 1:
            one.user = {"forward": "evaluation"}
        append(ledger, rank_report(one), rank_report(one).steps)
    assert ledger.sources("no such run") == []
    processes, sources = ledger.processes("r1"), ledger.sources("r1")
    assert [one.identity.rank for one in sources] == [2, 1, 0]
    for process, source in zip(processes, sources, strict=True):
        key = {name: getattr(process.identity, name) for name in source.identity.__struct_fields__}
        assert asdict(source.identity) == key
        assert (source.phases, source.phase_states) == (process.phases, process.phase_states)
    assert sources[0].phases is sources[1].phases
    rows, same = (ledger.tails(of, [0, 1, 2]) for of in (processes, sources))
    for (process, values), (source, others) in zip(rows, same, strict=True):
        assert process.identity.rank == source.identity.rank and np.array_equal(values.values, others.values)


def test_unknown_process_has_no_rows(ledger):
    append(ledger, one_of(3), one_of(3).steps)
    for other in ({"run": "r2"}, {"rank": 1}, {"host": "else"}, {"pid": 1}, {"start_ns": 1}):
        identity = replace(one_of(3).identity, **other)
        assert list(ledger.rows(identity)) == list(ledger.rows(identity, 0, NOW)) == []
        assert ledger.events(identity) == []


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 1 << 30), count=st.integers(1, 40), chunks=st.integers(1, 30), page=st.integers(1, 7)
)
def test_overlapping_blocks_give_each_number_once(ledger, seed, count, chunks, page):
    chance = random.Random(seed)
    report = one_of(count, run=f"r{seed} {count} {chunks} {page}", loader=0.5, forward=0.25)
    rows = report.steps
    parts = [chance.sample(rows, chance.randint(1, count)) for _ in range(chunks)]
    if chance.random() < 0.5:  # Pushes that mostly follow each other, each repeating some of the last.
        parts = [rows[max(0, at - 3) : at + 5] for at in range(0, count, 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_reader, "PAGE_BLOCKS", page)
        patch.setattr(records, "BLOCK_ROWS_MAX", chance.randint(1, 50))
        append(ledger, report, *parts)
        want = sorted({row.number: row for part in parts for row in part}.values(), key=lambda r: r.number)
        assert list(ledger.rows(report.identity)) == want
        edges = [edge + by for row in want for edge in (row.start_ns, row.end_ns) for by in (-1, 0, 1)]
        times = [*edges, None]
        for _ in range(12):
            start, end = chance.choice(times), chance.choice(times)
            found = list(ledger.rows(report.identity, start, end))
            assert found == [
                row
                for row in want
                if (start is None or row.end_ns >= start) and (end is None or row.start_ns <= end)
            ]
            moments, after = sorted(chance.choices(edges, k=chance.randint(1, 5))), chance.randint(0, count)
            (process,) = ledger.processes(report.identity.run)
            found = step_rows(ledger.rows_at(process, moments, after))
            assert [row.number for row in found] == [
                row.number
                for row in want
                if row.number > after and any(row.start_ns <= at <= row.end_ns for at in moments)
            ]


def test_blocks_with_equal_bounds_are_both_kept(ledger):
    report = one_of(3)
    first, second, third = report.steps
    append(ledger, report, [first, third], [first, second, third], [third, first])
    assert list(ledger.rows(report.identity)) == report.steps


def test_given_blocks_are_stored_as_they_are(ledger):
    report = one_of(30, loader=0.5, forward=0.25)
    rows, width = report.steps, len(report.phases)
    times = rows[0].start_ns, rows[-1].end_ns
    block = NewBlock(pack(encode_rows(rows, width)), width, 30, 1, 30, *times)
    ledger.append([NewRecords(replace(report, steps=[]), [block], [])])
    assert list(ledger.rows(report.identity)) == rows
    append(ledger, report, rows)
    (process,) = ledger.processes("r1")
    assert [len(columns) for columns in ledger.columns(process)] == [30]
    assert sum(block.blocks for block in inspection.contents(ledger, 7, NOW).tiers) == 1, "the same block"


def test_rows_at_moments_read_no_other_blocks(ledger, url):
    report = one_of(100)
    append(ledger, report, *(report.steps[at : at + 10] for at in range(0, 100, 10)))
    with database(url) as connection:
        connection.exec_driver_sql("update blocks set block = 'garbage' where first not in (41, 81)")
    (process,) = ledger.processes("r1")
    middles = [(row.start_ns + row.end_ns) // 2 for row in (report.steps[44], report.steps[82])]
    assert ledger.rows_at(process, middles)[NUMBER].tolist() == [45, 83]
    assert ledger.rows_at(process, []).shape[1] == 0


def test_window_skips_blocks_outside_of_it(ledger, url):
    report = one_of(100)
    append(ledger, report, *(report.steps[at : at + 10] for at in range(0, 100, 10)))
    with database(url) as connection:
        connection.exec_driver_sql("update blocks set block = 'garbage' where first < 41 or first > 61")
    inside = report.steps[40:70]
    window = (inside[0].start_ns + 1, inside[-1].end_ns - 1)
    assert list(ledger.rows(report.identity, *window)) == inside
    with pytest.raises(LedgerError):
        list(ledger.rows(report.identity, window[0] - 2, window[1]))
    with pytest.raises(LedgerError):
        list(ledger.rows(report.identity, window[0]))


def test_long_run_is_read_in_bounded_memory(ledger, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_ROWS_MAX", 50)
    monkeypatch.setattr(block_reader, "PAGE_BLOCKS", 4)
    report = one_of(20_000)
    append(ledger, report, report.steps)

    def peak_bytes(read) -> int:
        tracemalloc.start()
        read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert sum(1 for _ in ledger.rows(report.identity)) == 20_000
    streamed = peak_bytes(lambda: sum(1 for _ in ledger.rows(report.identity)))
    whole = peak_bytes(lambda: list(ledger.rows(report.identity)))
    assert streamed < whole / 10, (streamed, whole)


def test_slow_reader_does_not_block_the_writer(ledger, monkeypatch):
    monkeypatch.setattr(block_reader, "PAGE_BLOCKS", 1)
    report = one_of(30)
    append(ledger, report, *(report.steps[at : at + 10] for at in (0, 10)))
    before = ledger._engine.pool.checkedout()
    rows = ledger.rows(report.identity)
    assert next(rows).number == 1
    assert ledger._engine.pool.checkedout() == before
    append(ledger, report, report.steps[20:])
    assert [row.number for row in rows] == list(range(2, 31)), "with rows appended meanwhile"


def test_rows_of_a_run_use_an_index(ledger, url, backend):
    append(ledger, one_of(30), one_of(30).steps)
    executed = []

    def remember(_connection, _cursor, statement, parameters, *_):
        if statement.startswith("SELECT") and "FROM" in statement:
            executed.append((statement, parameters))

    sql.event.listen(ledger._engine, "before_cursor_execute", remember)
    identity = one_of(30).identity
    list(ledger.rows(identity)), list(ledger.rows(identity, ns(1), ns(500))), list(ledger.events(identity))
    ledger.runs()
    assert len(executed) == 6
    with database(url) as connection:
        # On a handful of rows PostgreSQL would rather read the table; what it could do is what counts.
        if backend == "postgresql":
            for way in ("enable_seqscan", "enable_sort", "enable_bitmapscan"):
                connection.exec_driver_sql(f"set {way} = off")
        explain = "EXPLAIN QUERY PLAN" if backend == "sqlite" else "EXPLAIN"
        for statement, parameters in executed:
            plan = "\n".join(
                str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters)
            )
            assert "Seq Scan" not in plan and "SCAN blocks" not in plan and "SCAN events" not in plan, plan
            if "GROUP BY" not in statement:
                assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
            if "blocks.start_ns_first" in statement:
                assert ("COVERING INDEX" if backend == "sqlite" else "Index Only Scan") in plan, plan
