"""`goodput serve` as a user runs it, in a process of its own."""

import sys

from goodput.child_processes import Child

START_SECONDS_MAX = 60


class ServeCommand(Child):
    """The command on a free port of loopback, killed on leaving the context; `setup` is Python that runs before."""

    def __init__(self, folder, ledger_url: str, *options: str, setup: str = ""):
        main = f"import sys\nfrom goodput.cli import main\n{setup}\nsys.exit(main(sys.argv[1:]))"
        program = ["-c", main] if setup else ["-m", "goodput"]
        command = [sys.executable, *program, "serve", "--listen", "127.0.0.1:0"]
        # Runs of tests may begin in 1970.
        command += ["--oldest-start", "36500"]
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
