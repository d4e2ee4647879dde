"""Whose link is slow, by figures of connections worked out by hand."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, account_of

from goodput.account import document
from goodput.account.collectives.slow_link import RankConnections, slow_link, slow_link_document, stalled_link
from goodput.account.text import render, slow_link_text
from goodput.causes import explain
from goodput.wire.connections import ConnectionRow

SECOND, MS = 10**9, 10**6


def row(sender: int, receiver: int, busy: float = 0.05, mb: float = 100, lost: int = 0, **more):
    """One second's connection from rank to rank, each of which listens on a port 5000 + its number."""
    local, remote = f"10.0.0.{sender}:4{receiver:03}", f"10.0.0.{receiver}:5{receiver:03}"
    segments = int(mb * 1000)
    given = {"rtt_ns": MS, "unacked": 0, "retransmits": 0, "silent_ns": 0, **more}
    return ConnectionRow(local, remote, int(busy * SECOND), int(mb * 1e6), segments, lost, **given)


def ranks(*rows, hosts=None, window_ns: int = SECOND):
    """The ranks that send something, each on a host of its own."""
    by_rank: dict[int, list] = {}
    for one in rows:
        by_rank.setdefault(int(one.local.split(":")[0].rsplit(".", 1)[1]), []).append(one)
    return [
        RankConnections(rank, (hosts or {}).get(rank, f"n{rank}"), window_ns, some)
        for rank, some in sorted(by_rank.items())
    ]


def ring(*slow: tuple[int, int], world: int = 4, **more):
    """Each rank sends the next 100 MB, in 0.05 s, and over a slow link in 0.9 s."""
    return [
        row(at, (at + 1) % world, **({"busy": 0.9, **more} if (at, (at + 1) % world) in slow else {}))
        for at in range(world)
    ]


def test_one_slow_flow_names_its_sender_and_receiver():
    """100 MB in 0.9 s are 111 MB/s; the others have 2 GB/s."""
    found = slow_link(ranks(*ring((1, 2))))
    assert found is not None and (found.rank, found.host, found.address) == (1, "n1", "10.0.0.1")
    assert (found.worst.peer, found.worst.peer_host, found.count) == (2, "n2", 1)
    assert round(found.worst.bytes_per_second / 1e6) == 111 and round(found.usual / 1e6) == 2000
    assert found.worst.busy_share == 0.9


def test_common_end_of_slow_flows_is_named():
    """Its acknowledgements are slow too, so what it is sent is as slow as what it sends; also with three ranks."""
    for world in (3, 4):
        found = slow_link(ranks(*ring((0, 1), (1, 2), world=world)))
        assert found is not None and (found.rank, found.address, found.count) == (1, "10.0.0.1", 2)


def test_both_ways_of_one_pair_are_one_flow():
    pair = [row(1, 2, busy=0.9), row(2, 1, busy=0.8)]
    found = slow_link(ranks(*ring()[:1], *pair, row(3, 0), row(2, 3)))
    assert found is not None and (found.rank, found.worst.peer, found.count) == (1, 2, 1)


@pytest.mark.parametrize(("times", "is_slow"), [(4.1, True), (3.9, False)])
def test_border_is_a_quarter_of_the_usual_rate(times, is_slow):
    found = slow_link(ranks(*[row(i, (i + 1) % 4, busy=0.22 * (times if i == 1 else 1)) for i in range(4)]))
    assert (found is not None) is is_slow


def test_all_links_alike_name_nobody():
    assert slow_link([]) is None
    assert slow_link(ranks(*[row(i, (i + 1) % 4, busy=1.0) for i in range(4)])) is None


def test_slow_flows_without_a_common_end_name_nobody():
    assert slow_link(ranks(*ring((0, 1), (2, 3)))) is None
    assert slow_link(ranks(*ring((0, 1), (1, 2), (2, 3)))) is None


def test_flow_that_is_busy_for_a_shorter_time_does_not_count():
    """As measured: rank 1's link carries 0.8 MB/s, and small messages from rank 3 wait for acknowledgements held back."""
    flows = [row(1, 0, busy=0.99, mb=2), row(2, 1, busy=0.91, mb=2), row(0, 3, busy=0.05, mb=2)]
    for busy, rank in ((0.32, 1), (0.6, None)):
        found = slow_link(ranks(*flows, row(3, 2, busy=busy, mb=2)))
        assert (found and found.rank) == rank


def test_flow_that_is_rarely_busy_is_not_slow():
    """A late rank leaves the links idle; what little is sent then may take as long as an acknowledgement is held back."""
    assert slow_link(ranks(*[row(i, (i + 1) % 4, busy=0.19 if i == 1 else 0.01) for i in range(4)])) is None


def test_rates_of_little_data_are_not_compared():
    """Control messages of 48 bytes take a round trip each: 1 MB of them in 0.3 s is no slow link."""
    assert slow_link(ranks(*ring(), row(1, 0, busy=0.3, mb=1))) is None


def test_lossy_flow_is_slow_whatever_it_carries():
    lossy = row(1, 0, busy=0.3, mb=1, lost=10)
    found = slow_link(ranks(*ring(), lossy))
    assert found is not None and (found.rank, found.worst.peer) == (1, 0)
    assert slow_link_document(found)["retransmitted_share"] == 0.01
    assert slow_link(ranks(*ring(), row(1, 0, busy=0.3, mb=1, lost=9))) is None, "below 1 %"
    assert slow_link(ranks(*ring(), row(1, 0, busy=0.3, mb=0.1, lost=4))) is None, "4 % of 100, too few"


def test_loss_on_all_links_names_nobody():
    assert slow_link(ranks(*ring((0, 1), (1, 2), (2, 3), (3, 0), lost=5000))) is None


def test_connections_to_others_do_not_count():
    """Storage is no rank of the run, however slow."""
    upload = ConnectionRow("10.0.0.1:4000", "10.9.9.9:443", SECOND, 10**6, 1000, 500, MS, 5, 9, 60 * SECOND)
    assert slow_link(ranks(*ring(), upload)) is None
    assert stalled_link(ranks(*ring(), upload)) is None


def test_address_of_several_ranks_names_the_host_alone():
    """Two ranks share each host; a connection to a port that nobody reported may be of either."""
    rows = [
        RankConnections(rank, f"n{rank // 2}", SECOND, [
            ConnectionRow(f"10.0.0.{rank // 2}:4{rank}", f"10.0.0.{to}:777", busy, 10**8, 10**5, 0, MS, 0, 0, 0)
        ])
        for rank, to, busy in ((0, 1, 9 * SECOND // 10), (1, 1, SECOND // 20), (2, 2, SECOND // 20), (3, 2, SECOND // 20),
                               (4, 0, SECOND // 20), (5, 0, SECOND // 20))
    ]  # fmt: skip
    found = slow_link(rows)
    assert found is not None and (found.rank, found.worst.peer, found.worst.peer_host) == (0, None, "n1")
    assert "a rank on n1 (10.0.0.1)" in slow_link_text(slow_link_document(found))


def test_stalled_link_is_named_by_the_common_end():
    dead = {"unacked": 3, "retransmits": 6, "silent_ns": 35 * SECOND}
    rows = [row(0, 1, **dead), row(1, 2, **dead | {"silent_ns": 30 * SECOND}), row(2, 3), row(3, 0)]
    found = stalled_link(ranks(*rows, window_ns=0))
    assert found is not None and (found.rank, found.count) == (1, 2)
    assert slow_link_text(slow_link_document(found)) == (
        "nothing comes through the link of rank 1 on n1 (10.0.0.1): what rank 0 on n0 sent it was not acknowledged for "
        "35 s, after 6 retransmissions"
    )


@pytest.mark.parametrize("given", [{"unacked": 0}, {"retransmits": 2}, {"silent_ns": 4 * SECOND}])
def test_what_is_acknowledged_or_just_sent_is_not_stalled(given):
    """A stopped process has a full window and nothing unacknowledged."""
    dead = {"unacked": 3, "retransmits": 6, "silent_ns": 35 * SECOND, **given}
    assert stalled_link(ranks(row(0, 1, **dead), row(1, 2), row(2, 0))) is None


def test_document_text_and_advice_name_the_rank():
    account = account_of(
        *[Process(i, host=f"n{i}").steps(4, forward=1, communication=0.5).finished() for i in range(4)]
    )
    assert document(account)["straggler"]["slow_link"] is None
    account.slow_link = slow_link(ranks(*ring((1, 2), lost=2000)))
    found = document(account, explain(account))
    assert found["straggler"]["slow_link"]["rank"] == 1
    line = (
        "rank 1 on n1 (10.0.0.1) has a slow link: it sends rank 2 on n2 (10.0.0.2) 111 MB/s while it has data to send, "
        "90.0 % of the time; other links carry 2 GB/s; 2.0 % of the segments were sent again, the round trip takes 1 ms"
    )
    text = " ".join(render(found, full=True).split())
    assert f"slow link: {line}" in text
    advice = {cause["state"]: cause["advice"] for cause in found["causes"]}["communication"]
    assert advice.startswith(f"R{line[1:]}: look at that node's network interface")
