"""Series that others leave in files: the strictness of the format, clashes between files, and node_exporter beside it."""

import math
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from support.metrics import client_model
from support.node.agents import agent_on
from support.servers.servers import free_ports, wait_until

from goodput.metrics import Families
from goodput.metrics.foreign import MalformedText, TimestampedText, parse_families
from goodput.metrics.openmetrics import OpenMetricsWriter
from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.textfile import collector as module
from goodput_exporters.collectors.textfile.collector import Textfile

ORACLE = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
GOOD = {
    "plain": "x 1\n",
    "labels": 'x{a="1",b="two"} 1.5e3\nx{a="2",b="",} -0\n',
    "blanks": '  x \t{ a = "1" , } \t 3\n\n \t\n',
    "sign-after-name": "x+5\n",
    "special": 'x{v="1"} NaN\nx{v="2"} +Inf\nx{v="3"} -inf\nx{v="4"} 0.1\nx{v="5"} .5\nx{v="6"} 5.\n',
    "escapes": '# HELP x a\\\\b\\nc\nx{a="\\"q\\" \\\\ \\n"} 1\n',
    "help-and-type": "# HELP x of x\n# TYPE x counter\nx 1\n",
    "type-in-capitals": "# TYPE x GAUGE\nx 1\n",
    "comments": "# a comment\n#\n# HELP\n# TYPE x\n#HELP x joined\nx 1\n",
    "no-samples": "# HELP y nothing\n# TYPE y gauge\nx 1\n",
    "histogram": (
        "# TYPE h histogram\n"
        'h_bucket{le="0.1"} 1\nh_bucket{le="+Inf"} 3\nh_sum 0.7\nh_count 3\n'
    ),
    "summary": '# TYPE s summary\ns{quantile="0.5"} 2\ns_sum 9\ns_count 4\n',
    "mixed-labels": 'x{a="1"} 1\nx{b="1"} 2\nx 3\n',
    "utf-8": 'x{a="größer 位"} 1\n',
    "empty": "",
    "nothing-but-comments": "# x\n",
}  # fmt: skip
BAD = {
    "no-line-feed": "y 1\nx 1",
    "no-value": "x\n",
    "name": "1x 1\n",
    "number": "x 1_0\n",
    "hexadecimal": "x 0x10\n",
    "too-large": "x 1e999\n",
    "word": "x one\n",
    "carriage-return": "x 1\r\n",
    "trailing-blank": "x 1 \n",
    "timestamp": "x 1 1700000000000\n",
    "timestamp-of-one": "y 2\nx 1 5\n",
    "not-a-timestamp": "x 1 now\n",
    "unclosed": 'x{a="1" 1\n',
    "no-quotes": "x{a=1} 1\n",
    "unclosed-quote": 'x{a="1} 1\n',
    "label-name": 'x{1a="1"} 1\n',
    "reserved": 'x{__name__="y"} 1\n',
    "label-twice": 'x{a="1",a="2"} 1\n',
    "two-commas": 'x{a="1",,b="2"} 1\n',
    "escape": 'x{a="\\t"} 1\n',
    "help-escape": "# HELP x \\t\nx 1\n",
    "help-twice": "# HELP x a\n# HELP x b\nx 1\n",
    "type-twice": "# TYPE x gauge\n# TYPE x gauge\nx 1\n",
    "type-late": "x 1\n# TYPE x gauge\n",
    "type-unknown": "# TYPE x info\nx 1\n",
    "bound": '# TYPE h histogram\nh_bucket{le="x"} 1\n',
    "quantile": '# TYPE s summary\ns{quantile="x"} 1\n',
    "name-in-comment": "# HELP 1x a\nx 1\n",
}


def of(text: str, format=text_string_to_metric_families) -> dict:
    """{(name, labels without empty ones): value} of an exposition; of NaN the text.

    prometheus_client's parser adds `_total` to counters without it.
    """
    names = set(re.findall(r"^[a-zA-Z_:][\w:]*", text, re.MULTILINE))
    return {
        (
            one.name if one.name in names else one.name.removesuffix("_total"),
            tuple(sorted((k, v) for k, v in one.labels.items() if v)),
        ): ("NaN" if math.isnan(one.value) else one.value)
        for family in format(text)
        for one in family.samples
    }


def textfile(directory, *more) -> Textfile:
    return Textfile(Settings(directory="", textfile_directories=(str(directory), *map(str, more))))


def collect(collector: Textfile) -> tuple[Families, str]:
    """What it adds and what it complains about."""
    families, problem = Families("node"), ""
    try:
        collector.collect(families)
    except (CollectorError, NoData) as error:
        problem = str(error)
    return families, problem


def foreign(families: Families, format=TextWriter) -> str:
    only = Families("node")
    only.foreign = families.foreign
    return format().write([only]).decode()


def refused(families: Families) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for (path, reason), _ in families.rows.get("goodput_textfile_refused", ()):
        found.setdefault(Path(path).name, set()).add(reason)
    return found


# -- the format


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_good_text_is_read_and_written_again(tmp_path, text):
    (tmp_path / "a.prom").write_text(text)
    families, problem = collect(textfile(tmp_path))
    assert problem == "" and refused(families) == {}
    names = [one.name for family in families.foreign for one in family.samples]
    assert len(names) == sum(line.lstrip()[:1] not in ("#", "") for line in text.splitlines())
    # What is written is read as the same, in both text formats and by another parser.
    assert (
        parse_families(foreign(families)) == [one for one in families.foreign if one.samples]
        or "HELP" not in text
    )
    assert of(foreign(families)) == of(foreign(families, OpenMetricsWriter), openmetrics_families)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_file_with_a_bad_line_has_no_series(tmp_path, text):
    (tmp_path / "a.prom").write_text("other 1\n" + text)
    (tmp_path / "b.prom").write_text("kept 1\n")
    families, problem = collect(textfile(tmp_path))
    assert [family.name for family in families.foreign] == ["kept"]
    assert "a.prom: line " in problem
    assert refused(families) == {
        "a.prom": {"timestamp" if text in (BAD["timestamp"], BAD["timestamp-of-one"]) else "malformed"}
    }


def test_errors_name_line_and_reason():
    with pytest.raises(MalformedText, match="line 3: 'one' is no number"):
        parse_families("# x\nx 1\ny one\n")
    with pytest.raises(TimestampedText, match="line 1: x has a timestamp"):
        parse_families("x 1 5\n")


@given(st.text(st.sampled_from('x1_ {}="\\,#\n\tHELPTYPEgauge+.e5'), max_size=60))
def test_any_text_parses_or_raises(text):
    try:
        found = parse_families(text)
    except MalformedText:
        return
    written = Families("node")
    written.foreign = found
    again = parse_families(foreign(written))
    assert [family.samples for family in again] == [family.samples for family in found]


def test_counters_keep_their_names_in_openmetrics():
    """As an OpenMetrics counter, x would have to be x_total, and queries would not find it."""
    families = Families("node")
    families.foreign = parse_families("# TYPE x counter\nx 1\n# TYPE y_total counter\ny_total 2\nz 3\n")
    text = foreign(families, OpenMetricsWriter)
    assert "# TYPE x unknown\nx 1.0\n" in text and "# TYPE y counter\ny_total 2.0\n" in text
    assert of(text, openmetrics_families) == {("x", ()): 1, ("y_total", ()): 2, ("z", ()): 3}


def test_protobuf_has_the_same_samples():
    families = Families("node")
    families.foreign = parse_families("".join(GOOD[name] for name in ("labels", "histogram", "summary")))
    found = {
        (name, tuple(sorted(labels))): value
        for (name, labels), value in client_model.values(ProtobufWriter().write([families])).items()
    }
    assert found == of(foreign(families))


# -- files


def test_files_are_merged_by_name(tmp_path):
    (tmp_path / "a.prom").write_text('# TYPE x gauge\nx{a="1"} 1\n')
    (tmp_path / "b.prom").write_text('# HELP x of x\n# TYPE x gauge\nx{a="2"} 2\n')
    (tmp_path / "c.txt").write_text("y 1\n")
    families, problem = collect(textfile(tmp_path))
    assert (
        foreign(families) == '# HELP x of x\n# TYPE x gauge\nx{a="1"} 1.0\nx{a="2"} 2.0\n' and problem == ""
    )


def test_series_without_help_name_their_files(tmp_path):
    """As node_exporter does."""
    (tmp_path / "a.prom").write_text('x{a="1"} 1\n')
    (tmp_path / "b.prom").write_text('x{a="2"} 1\n# HELP y of y\ny 1\n')
    families, _ = collect(textfile(tmp_path))
    assert {family.name: family.help for family in families.foreign} == {
        "x": f"Metric read from {tmp_path}/a.prom, {tmp_path}/b.prom", "y": "of y",
    }  # fmt: skip


def test_clashes_cost_the_later_file_alone(tmp_path):
    (tmp_path / "a.prom").write_text(
        '# TYPE x gauge\nx 1\n# TYPE h histogram\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n'
    )
    (tmp_path / "b.prom").write_text('# TYPE x counter\nx{a="1"} 2\ny 1\n')
    (tmp_path / "c.prom").write_text('# TYPE x gauge\nx 3\nx{a=""} 4\nz 1\n')
    (tmp_path / "d.prom").write_text(
        "goodput_host_cpus 9\ngoodput_step_duration_seconds_count 1\nh_count 7\nv 1\n"
    )
    families, problem = collect(textfile(tmp_path))
    found = of(foreign(families))
    assert {name: value for (name, _), value in found.items() if len(name) == 1} == {
        "x": 1,
        "y": 1,
        "z": 1,
        "v": 1,
    }
    assert found["h_count", ()] == 1 and not any(name.startswith("goodput") for name, _ in found)
    assert refused(families) == {"b.prom": {"clash"}, "c.prom": {"duplicate"}, "d.prom": {"clash"}}
    assert "b.prom: x is a gauge already, not a counter" in problem
    assert "c.prom: 2 series of x are there already" in problem
    assert "d.prom: goodput_host_cpus is the agent's or an aggregator's own name" in problem


def test_time_of_each_file(tmp_path):
    (tmp_path / "a.prom").write_text("x 1\n")
    os.utime(tmp_path / "a.prom", (1_700_000_000, 1_700_000_000))
    families, _ = collect(textfile(tmp_path))
    path = str(tmp_path / "a.prom")
    assert families.rows["goodput_textfile_modified_timestamp_seconds"] == [((path,), 1.7e9)]


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    (tmp_path / "a.prom").write_text("x 1\n")
    parsed, collector = [], textfile(tmp_path)
    monkeypatch.setattr(module, "parse_families", lambda text: parsed.append(text) or parse_families(text))
    collect(collector), collect(collector)
    assert parsed == ["x 1\n"]
    (tmp_path / "new").write_text("x 2\n")
    (tmp_path / "new").replace(tmp_path / "a.prom")
    assert foreign(collect(collector)[0]).endswith("x 2.0\n")
    assert foreign(collect(collector)[0]).endswith("x 2.0\n"), "what is kept is not added to"
    (tmp_path / "a.prom").unlink()
    assert collect(collector)[0].foreign == []


def test_what_is_no_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 100)
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "folder.prom").mkdir()
    (tmp_path / "large.prom").write_text("x 1\n" * 30)
    (tmp_path / "bytes.prom").write_bytes(b'x{a="\xff"} 1\n')
    (tmp_path / "good.prom").write_text("y 1\n")
    families, problem = collect(textfile(tmp_path, tmp_path / "none"))
    assert [family.name for family in families.foreign] == ["y"]
    reasons = {"folder.prom": {"unreadable"}, "large.prom": {"large"}, "bytes.prom": {"malformed"}}
    assert refused(families) == reasons | {"pipe.prom": {"unreadable"}}
    assert "pipe.prom: no regular file" in problem
    assert "none: No such file" in problem and "bytes.prom: not UTF-8" in problem


def test_what_is_no_file_holds_no_descriptor(tmp_path):
    """Opening a folder for reading succeeds, and only reading it fails."""
    (tmp_path / "folder.prom").mkdir()
    os.mkfifo(tmp_path / "pipe.prom")
    collector = textfile(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        collect(collector)
    assert len(os.listdir("/proc/self/fd")) == before


def test_fifo_with_a_writer_keeps_its_data(tmp_path):
    """And costs no other file."""
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "good.prom").write_text("y 1\n")
    writer = os.open(tmp_path / "pipe.prom", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"x 1\n")
        families, _ = collect(textfile(tmp_path))
        assert [family.name for family in families.foreign] == ["y"]
        assert os.read(writer, 100) == b"x 1\n"
    finally:
        os.close(writer)


def test_series_and_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLES_MAX", 3)
    monkeypatch.setattr(module, "FILES_MAX", 2)
    for name in "abc":
        (tmp_path / f"{name}.prom").write_text(f"{name}1 1\n{name}2 1\n")
    families, problem = collect(textfile(tmp_path))
    assert [one.name for family in families.foreign for one in family.samples] == ["a1", "a2", "b1"]
    assert refused(families) == {"b.prom": {"large"}} and "3 files; only 2 are read" in problem


def test_lines_and_bytes_of_all_files_are_bounded(tmp_path, monkeypatch):
    """Before they are parsed; a file that does not fit costs only itself, and is read once there is room for it."""
    monkeypatch.setattr(module, "LINES_MAX", 5)
    monkeypatch.setattr(module, "BYTES_MAX", 60)
    parsed, collector = [], textfile(tmp_path)
    monkeypatch.setattr(module, "parse_families", lambda text: parsed.append(text) or parse_families(text))
    texts = {"a": "a 1\n", "b": "# \n" * 5, "c": f'c{{x="{"y" * 60}"}} 1\n', "d": "d 1\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.prom").write_text(text)
    for _ in range(2):
        families, problem = collect(collector)
        assert [family.name for family in families.foreign] == ["a", "d"]
        assert refused(families) == {"b.prom": {"large"}, "c.prom": {"large"}}
        assert "b.prom: with it all files have more than 5 lines or 60 bytes" in problem
    assert parsed == [texts["a"], texts["d"]]
    (tmp_path / "a.prom").unlink()
    assert refused(collect(collector)[0]) == {"c.prom": {"large"}, "d.prom": {"large"}}
    (tmp_path / "b.prom").unlink()
    assert refused(collect(collector)[0]) == {"c.prom": {"large"}}
    assert parsed[2:] == [texts["b"], texts["d"]]


def test_agent_serves_them_in_every_format(tree, clock):
    (tree / "texts").mkdir()
    (tree / "texts/a.prom").write_text("# TYPE raid_degraded gauge\nraid_degraded 1\n")
    agent = agent_on(tree, clock, textfile_directories=(str(tree / "texts"),))
    text = agent.once()
    assert "# TYPE raid_degraded gauge\nraid_degraded 1.0\n" in text
    for format in (OpenMetricsWriter, ProtobufWriter):
        assert b"raid_degraded" in agent.exposition(20.0, format)
    assert agent.exposition(20.0, OpenMetricsWriter).endswith(b"# EOF\n")
    level = dict(family for family in agent._parts[-1].rows["goodput_node_series"])
    assert level[("node",)] > 1


# -- the oracle


def scrape(directory) -> dict:
    """What node_exporter serves of this directory, by name and labels."""
    (port,) = free_ports(1)
    command = [
        *(ORACLE, f"--web.listen-address=127.0.0.1:{port}", "--web.disable-exporter-metrics"),
        *(
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={directory}",
        ),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            text = wait_until(
                lambda: process.poll() or _fetch(f"http://127.0.0.1:{port}/metrics"), 60, "its answer"
            )
        finally:
            process.send_signal(signal.SIGTERM)
    return of(text)


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.mark.skipif(ORACLE is None, reason="prometheus-node-exporter is not installed")
def test_node_exporter_takes_and_refuses_the_same(tmp_path):
    """Each text in a file of its own and under names of its own, so that none costs another."""
    for at, (name, text) in enumerate({**GOOD, **BAD}.items()):
        for letter in "xyhs":
            text = _renamed(text, letter, f"{letter}_{at}")
        (tmp_path / f"{name}.prom").write_text(text)
    families, _ = collect(textfile(tmp_path))
    ours, theirs = of(foreign(families)), scrape(tmp_path)
    times = {
        dict(labels)["file"]: value
        for (name, labels), value in theirs.items()
        if name == "node_textfile_mtime_seconds"
    }
    mine = {path: value for (path,), value in families.rows["goodput_textfile_modified_timestamp_seconds"]}
    assert mine == pytest.approx(times) and len(times) == len(GOOD)
    assert theirs["node_textfile_scrape_error", ()] == 1
    theirs = {key: value for key, value in theirs.items() if re.match(r"[xyhs]_\d", key[0])}
    assert ours == theirs and len(ours) > 20


def _renamed(text: str, letter: str, name: str) -> str:
    return re.sub(rf"(^|\n|HELP |TYPE )([ \t]*){letter}(?=[ _{{+\t\n])", rf"\g<1>\g<2>{name}", text)
