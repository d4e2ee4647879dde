"""A real PostgreSQL server for the tests: its own cluster in a temporary folder, on a unix socket only.

In: Debian's postgresql package, which puts its programs beside, not on, the path. Out: URLs of fresh databases,
with a password that the server checks. PostgreSQL refuses to run as root, so under root it runs as the package's
user. It can be stopped, started again, frozen and thawed; it and what it started are ended by process id.

It does not know what the databases are for.

    with PostgreSQL() as server:
        url = server.create_database()      # postgresql://goodput:...@/d1?host=/tmp/...
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import servers

USER, PASSWORD = "goodput", "pass-Wörd/with:signs@1"
READY_SECONDS_MAX = 60


def programs() -> Path | None:
    """The folder of the newest installed version's programs, None where there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda folder: float(folder.parent.name), default=None)


class PostgreSQL:
    """One cluster. `start` and `stop` may alternate; the data stays until the `with` ends.

    Its folder is made in `within`, by default where temporary files are.
    """

    def __init__(self, within: Path | None = None):
        self._within = within
        self._programs = programs()
        if self._programs is None:
            pytest.skip("not installed: PostgreSQL (Debian package postgresql)")
        self._as = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen | None = None
        self._numbers = itertools.count(1)
        self._created: list[str] = []

    def __enter__(self):
        # Not pytest's folder: that is closed to other users, and too long a path for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="goodput-pg-", dir=self._within))
        try:
            if self._as:
                owner = pwd.getpwnam("postgres")
                os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._make_cluster()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGQUIT)  # At once: nothing of it is needed any more.
        shutil.rmtree(self.folder)

    def _make_cluster(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [self._programs / "initdb", "--no-sync", "--encoding=UTF8", "--auth=scram-sha-256"]
        command += [f"--username={USER}", f"--pwfile={secret}", f"--pgdata={self.folder / 'data'}"]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=300, **self._as
        )
        assert done.returncode == 0, done.stderr
        secret.unlink()

    def start(self) -> None:
        command = [self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder]
        # Speed for the tests: nothing of these folders is to survive a power cut.
        for setting in ("listen_addresses=", "fsync=off", "full_page_writes=off", "max_connections=50"):
            command += ["-c", setting]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as,
            )
        servers.wait_until(self._is_ready, READY_SECONDS_MAX, "PostgreSQL to be ready", every_seconds=0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it as an administrator would: connections are closed, what is committed stays. SIGKILL is for all it started."""
        if self._process is None:
            return
        children = self._children() if how == signal.SIGKILL else []
        self._process.send_signal(how)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            for pid in [*self._children(), self._process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(120)
        self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, the server takes connections and requests and answers none."""
        pids = [self._process.pid, *self._children()]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, password: str = PASSWORD) -> str:
        import sqlalchemy

        given = {"username": USER, "password": password, "database": database}
        url = sqlalchemy.URL.create("postgresql", **given, query={"host": str(self.folder)})
        return url.render_as_string(hide_password=False)

    def create_database(self, template: str = "template1") -> str:
        """The URL of a new database, which is empty unless a template is given."""
        name = f"d{next(self._numbers)}"
        self._create(name, template)
        self._created.append(name)
        return self.url(name)

    def create_template(self, name: str) -> str:
        """The URL of an empty database that `drop_databases` leaves; connections to it have to be closed."""
        self._create(name, "template1")
        return self.url(name)

    def _create(self, name: str, template: str) -> None:
        with self.connect("postgres") as connection:
            # Copied as files: a third of the time of the default, which logs every page.
            connection.execute(f"create database {name} template {template} strategy file_copy")

    def drop_databases(self) -> None:
        """Remove all that were created; what is still connected to them is cut off."""
        with self.connect("postgres") as connection:
            for name in self._created:
                connection.execute(f"drop database if exists {name} with (force)")
        self._created.clear()

    def connect(self, database: str):
        """A psycopg connection of its own, outside of what is tested; each statement is a transaction."""
        import psycopg

        given = {"user": USER, "password": PASSWORD, "host": str(self.folder)}
        return psycopg.connect(dbname=database, autocommit=True, connect_timeout=10, **given)

    def _is_ready(self) -> bool:
        import psycopg

        log = (self.folder / "log.txt").read_text(errors="replace")
        assert self._process.poll() is None, f"PostgreSQL ended:\n{log[-2000:]}"
        try:
            self.connect("postgres").close()
            return True
        except psycopg.OperationalError:
            return False

    def _children(self) -> list[int]:
        """Pids of the processes that the server started; each has a session of its own, so no group holds them."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, rest = stat.read_text().split(" ", 1)
                if int(rest.rpartition(")")[2].split()[1]) == self._process.pid:
                    found.append(int(pid))
        return found
