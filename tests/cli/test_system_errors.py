"""Errors of the system are said in words, with what they are about, and without their number."""

import ctypes
import os
import socket
import subprocess
import sys

import pytest

from goodput import _core
from goodput.cli import main
from goodput.rank_page.page import PageError
from goodput.rank_page.page_file import PageFile


def call(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "goodput", *words], capture_output=True, text=True, timeout=60
    )


def test_address_in_use(tmp_path):
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = call("node", "--listen", address, "--directory", str(tmp_path))
        checked = call("node", "--check", "--listen", address, "--directory", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [f"goodput node: cannot listen on {address}: Address already in use"]
    assert f"{address}: Address already in use" in checked.stdout and "Errno" not in checked.stdout


def test_server_that_is_not_there(capsys):
    pytest.importorskip("httpx")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["end", "run", "--url", url]) == 1
    assert capsys.readouterr().err == f"goodput end: {url}: Connection refused\n"


def test_error_with_a_file_that_no_command_expects(monkeypatch, capsys):
    from goodput.cli import runs

    def raising(_):
        raise PermissionError(13, "Permission denied", "/etc/shadow")

    monkeypatch.setattr(runs, "call", raising)
    assert main(["runs"]) == 1
    assert capsys.readouterr().err == "goodput runs: /etc/shadow: Permission denied\n"


def test_core_that_cannot_be_loaded(monkeypatch, capsys):
    """Such as on a machine of another architecture than goodput was built on."""
    from goodput.cli import runs

    monkeypatch.setattr(_core.ctypes, "CDLL", lambda path: ctypes.PyDLL(f"{path}.absent"))
    monkeypatch.setattr(runs, "call", lambda _: _core.library.__wrapped__())
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("goodput runs: goodput's compiled core cannot be loaded, install goodput again: ")
    assert len(said.splitlines()) == 1


def test_page_and_folder_that_cannot_be_opened(tmp_path):
    with pytest.raises(PageError) as raised:
        PageFile(str(tmp_path / "absent.page"))
    assert str(raised.value).endswith("absent.page': No such file or directory")
    (tmp_path / "file").write_text("")
    code = "import goodput; goodput.start(run='r')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "GOODPUT_DIR": str(tmp_path / "file" / "pages")},
    )
    assert ended.returncode == 0
    assert "Not a directory; only goodput.report() will see" in ended.stderr and "Errno" not in ended.stderr
