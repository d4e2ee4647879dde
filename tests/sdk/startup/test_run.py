"""`goodput run`: the command takes this process's place, and every Python that it starts imports goodput.auto."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from support.mentions import mentions_goodput

GOODPUT = [sys.executable, "-c", "import sys; from goodput.cli import main; sys.exit(main())"]
SAYS = "import sys; print(sys.argv[1:], 'goodput.auto' in sys.modules)\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "a script.py").write_text(SAYS)
    return tmp_path


def run(place, *arguments, status=0, text=None, **environ) -> subprocess.CompletedProcess:
    given = dict(os.environ, GOODPUT_DIR=str(place / "pages"), **environ)
    done = subprocess.run(
        [*GOODPUT, "run", *map(str, arguments)],
        cwd=place, env=given, input=text, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


def script(place, text: str, name: str = "train.py"):
    path = place / name
    path.write_text(textwrap.dedent(text))
    return path


def test_arguments_and_paths(place):
    for path in ("a script.py", "./a script.py", place / "a script.py"):
        assert run(place, path, "--epochs", "3", "-m").stdout == "['--epochs', '3', '-m'] True\n"


def test_a_module_a_package_and_a_command(place):
    (place / "pack").mkdir()
    script(place, SAYS, "pack/__main__.py")
    script(place, SAYS, "pack/part.py")
    assert run(place, "-m", "pack.part", "x").stdout == "['x'] True\n"
    assert run(place, "pack", "x").stdout == "['x'] True\n"
    assert run(place, sys.executable, "-c", SAYS, "x").stdout == "['x'] True\n"


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_the_script_s(place, status):
    run(place, script(place, f"raise SystemExit({status})"), status=status)


def test_what_does_not_exist(place):
    done = run(place, "nothing.py", status=2)
    assert done.stderr == "goodput run: nothing.py: no such script or command\n"


def test_a_traceback_is_that_of_plain_python(place):
    path = script(place, "def f():\n    raise KeyError('x')\nf()\n")
    plain = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=place, timeout=300
    )
    assert run(place, path, status=1).stderr == plain.stderr


def test_a_signal_ends_the_script_itself(place):
    path = script(place, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")
    run(place, path, status=-signal.SIGTERM)


def test_an_interrupt_reaches_the_script(place):
    path = script(
        place,
        """
        import os, signal
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    assert run(place, path).stdout == "interrupted\n"


def test_python_environment_is_unchanged(place):
    path = script(place, "import sys; print(sys.path, sys.argv, __name__, __file__, sys.flags.isolated)")
    plain = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=place, timeout=300
    )
    assert run(place, path).stdout == plain.stdout


def test_another_sitecustomize_still_runs(place):
    (place / "own").mkdir()
    script(place, "import sys; sys.of_another = True", "own/sitecustomize.py")
    path = script(place, "import sys, sitecustomize; print(sys.of_another, sitecustomize.__file__)")
    done = run(place, path, PYTHONPATH=str(place / "own"))
    assert done.stdout == f"True {place / 'own' / 'sitecustomize.py'}\n"


def test_failing_sitecustomize_fails_as_before(place):
    (place / "own").mkdir()
    script(place, "raise KeyError('own')", "own/sitecustomize.py")
    done = run(place, "--quiet", script(place, "print('on')"), PYTHONPATH=str(place / "own"))
    assert done.stdout == "on\n" and "KeyError: 'own'" in done.stderr and not mentions_goodput(done.stderr)


CHILDREN = """
    import multiprocessing, subprocess, sys
    def child(queue):
        queue.put("goodput.auto" in sys.modules)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print("spawn", queue.get())
        process.join()
        for flags in ([], ["-I"], ["-S"], ["-E"], ["-s"]):
            code = "import sys; print('goodput.auto' in sys.modules)"
            done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)
            print(*flags, done.stdout.strip(), done.stderr.strip())
"""


def test_children_are_measured_through_the_environment(place):
    printed = run(place, script(place, CHILDREN)).stdout.splitlines()
    assert printed == ["spawn True", "True ", "-I False ", "-S False ", "-E False ", "-s True "]


def test_a_python_without_goodput_uses_this_one(place):
    """Without site-packages goodput is found by where sitecustomize.py lies, and sys.path stays as it was."""
    code = "import sys, sitecustomize; print('goodput.auto' in sys.modules, any('goodput' in p for p in sys.path))"
    path = script(place, f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {code!r}])")
    done = run(place, "--quiet", path)
    assert done.stdout.startswith("True ") and not done.stderr


def test_a_script_on_standard_input(place):
    assert run(place, sys.executable, "-", "x", text=SAYS).stdout == "['x'] True\n"


def test_disabled_it_only_runs(place):
    path = script(place, "import goodput\nwith goodput.step(): pass\nprint(goodput.report().account)")
    assert run(place, path, GOODPUT_DISABLE="1").stdout == "{}\n"
    assert not (place / "pages").exists()


def test_the_run_s_name_and_its_pages(place):
    path = script(place, "import goodput\nwith goodput.step(): pass")
    done = run(place, "--name", "mine", "--directory", place / "here", "--quiet", path)
    assert done.stdout == done.stderr == ""
    assert [".mine." in page.name or "mine" in page.name for page in (place / "here").glob("*.page")] == [
        True
    ]
    assert "mine" in run(place, "--name", "mine", path).stderr


@pytest.mark.parametrize("flags", [["-E"], ["-I"], ["-uS"], ["-W", "ignore", "-sE"]])
def test_python_flags_that_disable_goodput_are_reported(place, flags):
    (place / "quiet.py").write_text("print('ran')")
    done = run(place, sys.executable, *flags, "quiet.py")
    assert done.returncode == 0 and done.stdout == "ran\n"
    assert flags[-1] in done.stderr and "nothing is measured" in done.stderr


@pytest.mark.parametrize(
    "flags", [["-u"], ["-W", "Error::E"], ["-XI"], ["--check-hash-based-pycs", "default"]]
)
def test_other_python_flags_are_accepted(place, flags):
    (place / "quiet.py").write_text("print('ran')")
    assert "measured" not in run(place, "--quiet", sys.executable, *flags, "quiet.py", "-E").stderr


def test_a_failed_run_is_reported_as_failed(place):
    """Its exit status is known only after the interpreter's exit functions, in which the report is prepared."""
    path = script(
        place,
        """
        import sys, time, goodput
        for _ in goodput.steps(range(3)): time.sleep(0.01)
        sys.exit("wrong")
        """,
    )
    said = run(place, path, status=1).stderr
    assert "wrong\n" in said and ": failed, 1 rank" in said and " down " not in said
    assert said.index(": failed, 1 rank") < said.index("goodput itself cost")
