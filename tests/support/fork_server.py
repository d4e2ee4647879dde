"""Runs Python scripts, each in a fork of this process, which has imported the modules that argv names after a socket.

A line on a connection to the socket is JSON: the seconds allowed, and for each process to run at the same time its
arguments (the script first after any "-m" and a module to import before it, or "-c" and code), environment, directory
and the files for its output. The answer is a line with their exit statuses. A connection is greeted with a line once
all is imported, and this process ends with its last connection.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import types

POLL_SECONDS = 0.002
FIRST_SECONDS_MAX = 60  # without any connection


class Child:
    """A forked process; `status` is None until it has ended, and -9 if it was killed for taking too long."""

    def __init__(self, pid: int):
        self.pid, self.status = pid, None

    def poll(self) -> bool:
        if self.status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if ended else None
        return self.status is not None

    def kill(self) -> None:
        if not self.poll():
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run(arguments: list[str], environment: dict[str, str], directory: str, out: str, errors: str) -> None:
    """Be a process that was started with these; ends in SystemExit."""
    os.environ.clear()
    os.environ.update(environment)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY),
        (2, errors, os.O_WRONLY),
    ):
        opened = os.open(path, flags | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(directory)
    first = arguments[1:2] if arguments[0] == "-m" else []
    arguments = arguments[2 * len(first) :]
    script = arguments[0]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if script == "-c":
        code, sys.path[0] = compile(arguments.pop(1), "<string>", "exec"), ""
    else:
        main.__file__, sys.path[0] = script, os.path.dirname(script)
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
    sys.path[1:1] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv[:] = arguments
    for module in first:
        importlib.import_module(module)
    exec(code, vars(main))
    sys.exit()


class Client:
    """A connection, and the processes of its request."""

    def __init__(self, connection: socket.socket):
        self.connection, self.lines = connection, connection.makefile("r")
        self.children: list[Child] = []
        self.end = 0.0

    def send(self, answer: object) -> None:
        with contextlib.suppress(OSError):  # It is gone, which the next read tells.
            self.connection.sendall(json.dumps(answer).encode() + b"\n")

    def poll(self) -> None:
        """Answer if all processes have ended, or have taken too long."""
        if sum(child.poll() for child in self.children) == len(self.children) or time.monotonic() > self.end:
            self.end_children()
            self.send([child.status for child in self.children])
            self.children = []

    def end_children(self) -> None:
        for child in self.children:
            child.kill()

    def close(self) -> None:
        self.lines.close()
        self.connection.close()


def serve(listener: socket.socket) -> dict | None:
    """Answer all clients until the last one is gone; in a fork, returns the process that it is to be."""
    clients: list[Client] = []
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            is_running = any(client.children for client in clients)
            events = selector.select(POLL_SECONDS if is_running else None if clients else FIRST_SECONDS_MAX)
            if not events and not clients:
                return None
            for key, _ in events:
                if key.fileobj is listener:
                    clients.append(Client(listener.accept()[0]))
                    selector.register(clients[-1].connection, selectors.EVENT_READ, clients[-1])
                    clients[-1].send("ready")
                elif line := key.data.lines.readline():
                    request = json.loads(line)
                    key.data.end = time.monotonic() + request["seconds"]
                    for process in request["processes"]:
                        pid = os.fork()
                        if not pid:
                            for client in clients:
                                client.close()
                            return process
                        key.data.children.append(Child(pid))
                else:
                    selector.unregister(key.data.connection)
                    key.data.end_children()
                    key.data.close()
                    clients.remove(key.data)
                    if not clients:
                        return None
            for client in clients:
                if client.children:
                    client.poll()


def fork(address: str, modules: list[str]) -> dict | None:
    """As `serve`, at this address, if no other process serves there."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:
            return None
        server = os.getpid()
        try:
            listener.listen(64)
            for name in modules:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()  # Collections of the forks do not look at what was imported here.
            return serve(listener)
        finally:
            if os.getpid() == server:
                with contextlib.suppress(FileNotFoundError):  # The test run may have removed its folder.
                    os.unlink(address)


def main() -> None:
    process = fork(sys.argv[1], sys.argv[2:])
    if process:
        run(**process)


if __name__ == "__main__":
    main()
