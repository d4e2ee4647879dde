"""A real terminal for tests: a program in a tmux server of its own, without the user's configuration.

with Terminal(["goodput", "top"], columns=80, lines=24) as terminal:
    terminal.wait_for("RANK"); terminal.keys("q")
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import pytest

WAIT_SECONDS_MAX = 60


def require_tmux() -> None:
    if shutil.which("tmux") is None:
        pytest.skip("not installed: tmux (Debian package tmux)")


class Terminal:
    """The program's exit status follows as `exit=N` on the screen; `pid` is that of the shell around it."""

    def __init__(self, command: list[str], folder: Path, columns: int = 80, lines: int = 24, **environ: str):
        require_tmux()
        self._socket = str(folder / f"tmux-{uuid.uuid4().hex[:8]}")
        settings = {"LANG": "C.UTF-8", **environ}
        program = shlex.join(["env", *(f"{name}={value}" for name, value in settings.items()), *command])
        shell = f"stty -a > {shlex.quote(str(folder))}/before; {program}; echo exit=$?; " \
            f"stty -a > {shlex.quote(str(folder))}/after; cat"  # fmt: skip
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TMUX", "LC_"))}
        self._environ = {**own, "LANG": "C.UTF-8", "SHELL": "/bin/sh"}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), shell)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], env=self._environ, check=False)

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def styled(self) -> str:
        """The screen with its colours as escape sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    def value(self, name: str) -> str:
        """A format of tmux, such as alternate_on."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def child(self) -> int:
        """The pid of the program under the shell."""
        shell = self.value("pane_pid")
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def wait_for(self, *texts: str, without: str | None = None) -> str:
        """The screen once it has all these texts, and not the other one."""
        end = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            screen = self.screen
            if all(text in screen for text in texts) and (without is None or without not in screen):
                return screen
            assert time.monotonic() < end, f"no {texts} without {without!r} on the screen:\n{screen}"
            time.sleep(0.05)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_SECONDS_MAX,
        )
        return done.stdout
