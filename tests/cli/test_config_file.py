"""`goodput serve --config FILE` and `goodput node --config FILE`: options of a TOML file, and what is wrong with one."""

import signal
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from support.installed import need
from support.paths import ROOT

from goodput.cli import parser

need("fastapi", "prometheus_client")
if sys.version_info < (3, 11):
    need("tomli")


@pytest.fixture
def parsed(tmp_path):
    """Arguments of a command with a file of this text, and further words."""
    path = tmp_path / "options.toml"

    def parse(command: str, text: str, *words: str):
        path.write_text(text)
        return parser([command]).parse_args([command, "--config", str(path), *words])

    return parse


def test_values_have_the_types_of_options(parsed):
    text = 'listen = "[::1]:0"\nstall = 30\nmetrics-public = true\nallow-host = ["a", "b"]\nmemory = "1G"\npartitions = 4\n'
    found = parsed("serve", text)
    assert (found.listen, found.stall, found.metrics_public) == (("::1", 0), 30.0, True)
    assert (found.allow_host, found.memory, found.partitions) == (["a", "b"], 1 << 30, 4)
    assert (found.stale, found.ledger, found.stream) == (30.0, None, [])
    node = parsed("node", 'nccl-ras = true\npush-interval = 2.5\nonce = false\ngpu-driver = ["nvml"]\n')
    assert (node.nccl_ras, node.push_interval, node.once, node.gpu_driver) == (
        "localhost:28028",
        2.5,
        False,
        ["nvml"],
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_command_line_wins(parsed, tmp_path, place):
    words = ["--stall", "5", "--allow-host", "z"]
    text = 'stall = 30\nstale = 40\nallow-host = ["a", "b"]\n'
    if place == "after":
        found = parsed("serve", text, *words)
    else:
        path = tmp_path / "options.toml"
        path.write_text(text)
        found = parser(["serve"]).parse_args(["serve", *words, "--config", str(path)])
    assert (found.stall, found.stale, found.allow_host) == (5.0, 40.0, ["z"])


def test_file_wins_over_a_variable(parsed, monkeypatch):
    monkeypatch.setenv("GOODPUT_AGGREGATOR", "http://variable:9471")
    assert parsed("node", "").aggregator == "http://variable:9471"
    assert parsed("node", 'aggregator = "http://file:9471"').aggregator == "http://file:9471"


def test_arguments_without_a_file_are_those_without_the_option():
    """Defaults that are text are converted, and lists are empty."""
    for command in ("serve", "node"):
        found = vars(parser([command]).parse_args([command]))
        assert found.pop("config") is None
        assert not [name for name, value in found.items() if type(value) is object or value == "==SUPPRESS=="]
        assert isinstance(found["listen"], tuple)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stall = 3\n\nlisten = 5", "line 3: listen: expected text, not a whole number"),
        ('stall = "30"', "line 1: stall: expected a number, not text"),
        ("stall = -1", "line 1: stall: '-1': expected 0.001 to 4.6e+09 seconds"),
        ("stall = nan", "line 1: stall: 'nan': expected 0.001 to 4.6e+09 seconds"),
        ("partitions = 1.5", "line 1: partitions: expected a whole number, not a number"),
        ("metrics-public = 1", "line 1: metrics-public: expected true or false, not a whole number"),
        ('allow-host = "a"', "line 1: allow-host: expected an array, not text"),
        ("allow-host = [1]", "line 1: allow-host: expected text, not a whole number"),
        ('role = "both"', "line 1: role: invalid choice: 'both'"),
        ('ledger = ""', "line 1: ledger: empty value; leave it out"),
        ("tokens = 2026-01-01", "line 1: tokens: expected text, not a time"),
        ("# a comment\nlisen = 1", "line 2: lisen: there is no such option; did you mean listen?"),
        ("keep_steps = 3", "line 1: keep_steps: there is no such option; did you mean keep-steps"),
        ("stall-seconds = 3", "line 1: stall-seconds: there is no such option"),
        ('config = "x"', "line 1: config: there is no such option"),
        ("[serve]\nstall = 3", "line 1: serve: there is no such option"),
        ("stall = 3\nstall = 4", "Cannot overwrite a value (at "),
        ("listen =", "Invalid value (at end of document)"),
    ],
)
def test_wrong_file_is_one_clear_line(parsed, tmp_path, capsys, text, said):
    with pytest.raises(SystemExit) as ended:
        parsed("serve", text)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("goodput serve: ") and str(tmp_path / "options.toml") in line and said in line


def test_file_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "latin").write_bytes(b'stall = 3\nledger = "\xe9"')
    with open(tmp_path / "large", "wb") as file:
        file.truncate((1 << 20) + 1)
    problems = {
        "none": "No such file or directory",
        "": "Is a directory",
        "latin": "line 2: not UTF-8",
        "large": "1 MiB",
    }
    for name, said in problems.items():
        with pytest.raises(SystemExit) as ended:
            parser(["node"]).parse_args(["node", "--config", str(tmp_path / name)])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"goodput node: --config {tmp_path / name}: ") and said in line


def test_documented_file_is_taken(parsed):
    page = (ROOT / "docs" / "configuration.md").read_text()
    text = textwrap.dedent(page[page.index("    # /etc/goodput/serve.toml") :].partition("\n\n")[0])
    found = parsed("serve", text)
    assert (found.listen, found.tls_key, found.keep_steps) == (("0.0.0.0", 9471), "/etc/goodput/head.key", 14)


def started(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "goodput", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM), errors
    return errors


def test_server_and_agent_run_by_their_files(tmp_path):
    """The processes that operators start: the agent reads the pages, and listens, where its file says."""
    serve, node = tmp_path / "serve.toml", tmp_path / "node.toml"
    serve.write_text(f'listen = "127.0.0.1:0"\nledger = "sqlite:///{tmp_path}/l.db"\nstall = 45\n')
    aggregator = started("serve", "--config", str(serve))
    try:
        url = aggregator.stdout.readline().split()[-1]
        assert aggregator.stdout.readline().split()[-1] == f"sqlite:///{tmp_path}/l.db"
        with urllib.request.urlopen(f"{url}/api/v1/runs", timeout=60) as answer:
            assert answer.status == 200
        node.write_text(f'listen = "127.0.0.1:0"\ndirectory = "{tmp_path}/wrong"\naggregator = "{url}"\n')
        agent = started("node", "--directory", f"{tmp_path}/pages", "--config", str(node))
        try:
            line = agent.stdout.readline()
            assert f"reads {tmp_path}/pages, serves http://127.0.0.1:" in line and f"pushes to {url}" in line
        finally:
            ended(agent)
    finally:
        ended(aggregator)
