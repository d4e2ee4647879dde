"""Options go on under their old names, with a warning that has the new one."""

import socket

import pytest
from support.installed import need
from support.paths import ROOT

from goodput.cli import main

need("msgspec", "httpx")
EXAMPLE = str(ROOT / "docs" / "example-run.jsonl")


def test_trace_of_a_log_by_its_file(tmp_path, capsys):
    traces = {}
    for words in ([EXAMPLE], ["--log", EXAMPLE]):
        out = tmp_path / "trace"
        assert main(["export", *words, "--perfetto", str(out)]) == 0
        traces[len(words)] = out.read_bytes()
        said = capsys.readouterr().err
        assert ("goodput export: --log is an old spelling of RUN, as FILE[#RUN]\n" in said) == (
            len(words) == 2
        )
    assert traces[1] == traces[2] and traces[1]


def test_run_of_a_log_is_named_behind_the_file(tmp_path, capsys):
    assert main(["export", f"{EXAMPLE}#absent", "--perfetto", str(tmp_path / "trace")]) == 1
    assert "no run 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--url", "--aggregator"])
def test_end_takes_url(option, capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["end", "run", option, url]) == 1
    warning = "goodput end: --aggregator is an old spelling of --url\n"
    assert (
        capsys.readouterr().err
        == warning * (option == "--aggregator") + f"goodput end: {url}: Connection refused\n"
    )
