"""A node that is slower than its peers is named, and the exit status says so; by hand."""

import json

import pytest
from support.installed import need

from goodput.cli import main
from goodput.probe import kept, node, peers


def probe_of(host: str, spread: float = 0.01, **values) -> dict:
    figures = [
        {"name": name, "value": value, "unit": "B/s", "device": "H100", "spread": spread, "note": ""}
        for name, value in values.items()
    ]
    return {"host": host, "cores": 8, "gpus": 8, "path": "/data", "figures": figures, "problems": []}


PEERS = [probe_of(f"n{n}", h2d_pinned=50e9 + n * 1e8, storage_read=(2 + n) * 1e9) for n in range(5)]


def test_slower_than_the_median_of_the_peers():
    # The peers' median is 50.2 GB/s; of storage it is 4 GB/s, and half of the quartiles' distance 1.5 of 4.
    [found] = peers.slower([probe_of("x", h2d_pinned=20.08e9, storage_read=3e9)], PEERS)
    assert (found.host, found.name, found.peers) == ("x", "h2d_pinned", 5)
    assert found.ratio == pytest.approx(0.4)
    found = peers.slower([probe_of("x", h2d_pinned=20.08e9, storage_read=2e9)], PEERS)
    assert [one.name for one in found] == ["h2d_pinned", "storage_read"]


@pytest.mark.parametrize(
    "document, tolerance",
    [
        (probe_of("x", h2d_pinned=45.3e9), 0.1),  # 9.8 % slower
        (probe_of("x", h2d_pinned=44e9), 0.15),
        (probe_of("x", spread=0.3, h2d_pinned=40e9), 0.1),  # its own repetitions vary by more
        (
            probe_of("n0", h2d_pinned=50e9),
            0.0,
        ),  # 0.5 % slower than n1 to n4, whose quartiles are that far apart
        (probe_of("x", other=1.0), 0.1),
        (probe_of("x", h2d_pinned=None), 0.1),
    ],
)
def test_not_slower(document, tolerance):
    assert peers.slower([document], PEERS, tolerance) == []


def test_node_is_not_its_own_peer_and_devices_differ():
    slow = probe_of("n0", h2d_pinned=1e9)
    assert peers.compared([slow], [slow]) == 0
    other = probe_of("x", h2d_pinned=1e9)
    other["figures"][0]["device"] = "A100"
    assert peers.compared([other], PEERS) == 0 and peers.slower([other], PEERS) == []


def test_what_most_peers_have_is_missed():
    assert peers.missing([probe_of("x", storage_read=4e9)], PEERS) == [("x", "h2d_pinned")]
    assert (
        peers.missing([probe_of("x", storage_read=4e9)], [*PEERS[:1], *[probe_of("y"), probe_of("z")]]) == []
    )


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What the command measures, as it is set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    found = {}
    monkeypatch.setattr(node, "probe", lambda options, tell: found["document"])
    return found


@pytest.mark.parametrize("form", ["lines", "list", "files"])
def test_command_compares_and_fails(tmp_path, measured, capsys, form):
    need("torch")
    texts = [json.dumps(peer) for peer in PEERS]
    files = [tmp_path / f"{n}.json" for n in range(len(PEERS) if form == "files" else 1)]
    for n, file in enumerate(files):
        joined = {"lines": "\n".join(texts), "list": f"[{','.join(texts)}]", "files": texts[n]}
        file.write_text(joined[form])
    against = ["probe", "--against", *map(str, files)]
    measured["document"] = probe_of("x", h2d_pinned=20.08e9, storage_read=4e9)
    assert main(against) == 1
    printed = capsys.readouterr()
    assert "goodput probe: x: h2d_pinned is 40% of the peers' median (5 figures)" in printed.err
    assert "20.1 GB/s" in printed.out and " 40%" in printed.out
    assert main([*against, "--tolerance", "70%"]) == 0
    measured["document"] = probe_of("x", h2d_pinned=50e9, storage_read=4e9)
    assert main(against) == 0
    measured["document"] = probe_of("x", h2d_pinned=50e9)
    assert main(against) == 1 and "storage_read is known of most peers only" in capsys.readouterr().err
    assert main([*against, "--only", "copies"]) == 0, "storage was not to be measured"
    measured["document"] = probe_of("x")
    assert main(["probe"]) == 1 and "nothing could be measured" in capsys.readouterr().err


def test_peers_that_are_the_node_itself_are_an_error(tmp_path, measured, capsys):
    need("torch")
    measured["document"] = probe_of("n1", h2d_pinned=1e9)
    (tmp_path / "peers.json").write_text(json.dumps(measured["document"]))
    assert main(["probe", "--against", str(tmp_path / "peers.json")]) == 1
    assert "no figure to compare: the peers are this node itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [*("", "{", "[]", "5", '{"host": "x"}', '{"host": "x", "figures": [{"name": "a"}]}'),
     '{"host": "x", "figures": [{"name": "a", "unit": "B/s", "device": "", "value": NaN}]}',
     '{"host": "x", "figures": [{"name": "a", "unit": "B/s", "device": "", "value": "9"}]}'],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, measured, capsys, text):
    """Before anything is measured."""
    need("torch")
    (tmp_path / "peers.json").write_text(text)
    assert main(["probe", "--against", str(tmp_path / "peers.json")]) == 1
    assert "peers.json" in capsys.readouterr().err


def test_path_that_is_no_folder_is_a_wrong_call(tmp_path, measured, capsys):
    need("torch")
    assert main(["probe", "--path", str(tmp_path / "none")]) == 2
    assert f"--path {tmp_path}/none: there is no such folder" in capsys.readouterr().err


def test_nothing_measured_is_not_kept(measured, capsys):
    need("torch")
    measured["document"] = {**probe_of("n1"), "problems": ["storage: no"]}
    assert main(["probe", "--only", "storage"]) == 1
    assert capsys.readouterr().err == "goodput probe: nothing could be measured\n"
    assert kept.load("n1") is None


def test_probe_is_kept_by_host(measured):
    document = probe_of("node-1.cluster", h2d_pinned=50e9)
    assert kept.load("node-1.cluster") is None
    path = kept.save(document)
    assert path and kept.load("node-1.cluster") == document
    assert kept.value(document, "h2d_pinned") == 50e9 and kept.value(document, "h2d_pinned", "A100") is None
    assert kept.save(probe_of("node-1.cluster", storage_read=2e9), is_whole=False) == path
    found = kept.load("node-1.cluster")
    assert (kept.value(found, "h2d_pinned"), kept.value(found, "storage_read")) == (50e9, 2e9)
    unknown = [{**one, "value": None} for one in document["figures"]]
    assert kept.save({**document, "figures": unknown}, is_whole=False) == path
    assert kept.value(kept.load("node-1.cluster"), "h2d_pinned") == 50e9  # A failed one replaces none.
    assert kept.save(document) == path and kept.load("node-1.cluster") == document
    for host in ("../x", "", ".x", "a/b"):
        assert kept.save({**document, "host": host}) is kept.load(host) is None
    with open(path, "w") as file:
        file.write('{"host": 5}')
    assert kept.load("node-1.cluster") is None
