"""What `make test` does with tests that fail beside others, seen with small suites of its own."""

import os

import pytest
from support import run_suite
from support.run_suite import (
    FILES_BESIDE_EACH_OTHER,
    NOTHING_SELECTED,
    REPEATED_MAX,
    Stage,
    has_byte_code,
    run,
    write_byte_code,
)

STAGES = (Stage("not alone", ()), Stage("alone", ()))
PASSING = """
import pytest
def test_passes(): pass
@pytest.mark.alone
def test_passes_in_second_stage(): pass
"""
# Each stage has a test that fails because of what ran before it, and passes when it is repeated alone.
BY_ORDER = """
import pytest
ran = []
def test_first(): ran.append(1)
def test_by_order(): assert not ran
@pytest.mark.alone
def test_first_in_second_stage(): ran.append(1)
@pytest.mark.alone
def test_by_order_in_second_stage(): assert not ran
"""
FIRST_FAILED = "tests: FAILED (not alone: pytest exit 1)"
FAILING = "def test_fails(): assert False\n"
SKIPPED_WHEN_ALONE = """
import pytest
ran = []
def test_first(): ran.append(1)
def test_skips():
    if not ran: pytest.skip()
    assert False
"""


@pytest.fixture
def run_tests(tmp_path, monkeypatch, capfd):
    """Runs tests of this text; returns the exit status, the last line and everything that was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # It starts faster with none but what the runner needs.
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\naddopts = -q -p xdist\n")

    def run_text(text: str, *arguments: str, stages=STAGES) -> tuple[int, str, str]:
        (tmp_path / "test_some.py").write_text(text)
        status = run(list(arguments), stages)
        printed = capfd.readouterr().out
        return status, printed.splitlines()[-1], printed

    return run_text


def test_passing_suite(run_tests):
    status, last, printed = run_tests(PASSING)
    assert (status, last) == (0, "tests: passed")
    assert printed.count("1 passed") == 2


def test_order_dependent_tests_pass_alone_and_are_named(run_tests):
    in_a_worker = (Stage("not alone", ("-n", "1", *FILES_BESIDE_EACH_OTHER)), STAGES[1])
    status, last, printed = run_tests(BY_ORDER, stages=in_a_worker)
    assert status == 0
    assert last == (
        "tests: passed, but 2 only alone; mend these: "
        "test_some.py::test_by_order test_some.py::test_by_order_in_second_stage"
    )
    assert printed.count("1 failed beside other tests, once more alone:") == 2


def test_failing_test_fails_beside_order_dependent_one(run_tests):
    status, last, printed = run_tests(BY_ORDER + FAILING, stages=STAGES[:1])
    assert (status, last) == (1, FIRST_FAILED)
    assert "2 failed beside other tests, once more alone:" in printed


def test_many_failures_are_not_repeated(run_tests):
    many = "".join(f"def test_{n}(): assert False\n" for n in range(REPEATED_MAX + 1))
    status, last, printed = run_tests(PASSING + many)
    assert (status, last) == (1, FIRST_FAILED)
    assert "once more" not in printed
    assert printed.count("1 passed") == 2  # The second stage ran nevertheless.


def test_skipped_test_has_not_passed(run_tests):
    assert run_tests(SKIPPED_WHEN_ALONE, stages=STAGES[:1])[:2] == (1, FIRST_FAILED)


def test_file_that_cannot_be_collected_fails(run_tests):
    status, last, _ = run_tests("import nothing_of_this_name\n", stages=STAGES[:1])
    assert (status, last) == (1, "tests: FAILED (not alone: pytest exit 2)")


def test_processes_that_collect_different_tests_fail_without_repeating_all(run_tests):
    differs = (
        "import os, pytest\n@pytest.mark.parametrize('pid', [os.getpid()])\ndef test_differs(pid): pass\n"
    )
    in_workers = Stage("not alone", ("-n", "2", *FILES_BESIDE_EACH_OTHER))
    status, last, printed = run_tests(differs, stages=(in_workers,))
    assert (status, last) == (1, FIRST_FAILED)
    assert "Different tests were collected" in printed and "once more" not in printed


def test_stage_without_tests_fails_unless_arguments_select(run_tests):
    only_first = PASSING.split("@")[0]
    assert run_tests(only_first)[:2] == (1, "tests: FAILED (alone: pytest exit 5)")
    assert run_tests(only_first, "-k", "passes")[:2] == (0, "tests: passed")


def test_nothing_selected_is_reported(run_tests):
    assert run_tests(PASSING, "-k", "absent")[:2] == (NOTHING_SELECTED, "tests: none selected")


@pytest.mark.parametrize("argument", ["-vx", "--maxfail=1"])
def test_failure_that_ends_a_stage_is_not_repeated(run_tests, argument):
    assert run_tests(BY_ORDER, argument, stages=STAGES[:1])[:2] == (1, FIRST_FAILED)


def test_byte_code_is_written_once_for_all_processes(run_tests, tmp_path):
    """Also where the environment says not to; with no test run."""
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(FAILING)
    write_byte_code(tmp_path)
    written = {path.name.partition(".")[0]: path.stat() for path in tmp_path.rglob("*-pytest-*.pyc")}
    assert sorted(written) == ["test_one", "test_other"]
    changed = tmp_path / "test_one.py"
    changed.write_text(FAILING + "\n")
    assert [has_byte_code(tmp_path / f"{name}.py") for name in sorted(written)] == [False, True]
    write_byte_code(tmp_path)
    assert has_byte_code(changed)
    (other,) = tmp_path.rglob("test_other*.pyc")
    assert other.stat().st_mtime_ns == written["test_other"].st_mtime_ns


def test_temporary_files_are_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(run_suite, "MEMORY", tmp_path)
    monkeypatch.setattr(run_suite, "MEMORY_BYTES_MIN", 1)
    before = os.environ.get("TMPDIR")
    with run_suite.temporary_files():
        (folder,) = tmp_path.iterdir()
        assert os.environ["TMPDIR"] == str(folder) and folder.stat().st_mode & 0o7777 == 0o1777
    assert os.environ.get("TMPDIR") == before and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory, bytes_min", [("", 1 << 62), ("none", 1)])
def test_without_memory_files_are_where_they_were(monkeypatch, tmp_path, memory, bytes_min):
    monkeypatch.setattr(run_suite, "MEMORY", tmp_path / memory)
    monkeypatch.setattr(run_suite, "MEMORY_BYTES_MIN", bytes_min)
    before = os.environ.get("TMPDIR")
    with run_suite.temporary_files():
        assert os.environ.get("TMPDIR") == before and list(tmp_path.iterdir()) == []
