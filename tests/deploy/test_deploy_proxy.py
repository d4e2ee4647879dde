"""nginx in front of the aggregator, with the shipped configuration on other ports: who may do what."""

import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import servers
from deploy_words import DEPLOY

INGEST, READ = "a1" * 32, "b2" * 32


class Backend(BaseHTTPRequestHandler):
    """Stands for the aggregator: says which path was asked for, and whether a token came through."""

    def _answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"{self.path} {'Authorization' in self.headers}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A client of nginx on the shipped configuration."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("not installed: nginx (Debian package nginx-light)")
    folder = tmp_path_factory.mktemp("proxy")
    (port,) = servers.free_ports(1)
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=backend.serve_forever, args=(0.05,), daemon=True).start()
    (folder / "allowed.conf").write_text(f'"Bearer {INGEST}" ingest;\n"Bearer {READ}" read;\n')
    text = (DEPLOY / "proxy" / "nginx.conf").read_text().replace("/tmp/", f"{folder}/")
    for old, new in {
        "listen 8471;": f"listen 127.0.0.1:{port};",
        "server 127.0.0.1:9471;": f"server 127.0.0.1:{backend.server_address[1]};",
        "/etc/goodput/tokens/allowed.conf": f"{folder}/allowed.conf",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text)
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with (folder / "log.txt").open("wb") as log:
        # As root its workers would be another user's, who may not write to the folder.
        user = "user root;" if os.getuid() == 0 else ""
        nginx = subprocess.Popen([*command, "-g", f"daemon off; {user}"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:

            def answers():
                assert nginx.poll() is None, (folder / "log.txt").read_text()
                try:
                    return client.get("/healthz").status_code == 200
                except httpx.TransportError:
                    return False

            servers.wait_until(answers, 10, "nginx to answer", every_seconds=0.02)
            yield client
    finally:
        nginx.terminate()
        nginx.wait(10)
        backend.shutdown()
        backend.server_close()


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/healthz", None, 200),
        ("GET", "/metrics", READ, 200),
        ("GET", "/api/v1/runs", READ, 200),
        ("POST", "/api/v1/ingest", INGEST, 200),
        ("POST", "/api/v1/ingest", READ, 401),
        ("POST", "/api/v1/ingest", None, 401),
        ("GET", "/metrics", INGEST, 401),
        ("GET", "/", None, 401),
        ("GET", "/metrics", READ[:-1], 401),
        ("GET", "/metrics", READ + "0", 401),
        ("POST", "/api/v1/ingest/", None, 401),
        ("POST", "/api/v1//ingest", None, 401),
        ("POST", "/api/v1/%69ngest", None, 401),
    ],
)
def test_a_token_opens_what_it_is_for_and_goes_no_further(proxy, method, path, token, status):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = proxy.request(method, path, headers=headers, content=b"x" if method == "POST" else None)
    assert answer.status_code == status
    if status == 200:
        assert answer.text == f"{path} False"


def test_a_report_of_the_largest_size_gets_through_and_a_larger_one_does_not(proxy):
    from goodput.schema import BODY_BYTES_MAX

    headers = {"Authorization": f"Bearer {INGEST}"}
    assert proxy.post("/api/v1/ingest", content=bytes(BODY_BYTES_MAX), headers=headers).status_code == 200
    assert proxy.post("/api/v1/ingest", content=bytes(BODY_BYTES_MAX + 1), headers=headers).status_code == 413
