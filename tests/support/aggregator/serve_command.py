"""`goodput serve` as a user runs it, in a process of its own."""

import sys

from goodput.child_processes import Child

START_SECONDS_MAX = 60


class ServeCommand(Child):
    """The command on a free port of loopback, killed on leaving the context."""

    def __init__(self, folder, ledger_url: str, *options: str):
        command = [sys.executable, "-m", "goodput", "serve", "--listen", "127.0.0.1:0"]
        super().__init__("serve", [*command, "--ledger", ledger_url, *options], folder)
        try:
            self.url = self.address(START_SECONDS_MAX)
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)
