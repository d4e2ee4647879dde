"""Every command and action has a man page that roff takes without a warning."""

import os
import shutil
import subprocess
import sys

import pytest
from support.deploy.deploy_words import DEPLOY

from goodput.cli import command_names


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    program = DEPLOY / "packages" / "man_pages.py"
    environ = os.environ | {
        "GOODPUT_AGGREGATOR": "http://mine:9471",
        "PYTHONPATH": str(DEPLOY.parent / "src"),
    }
    subprocess.run([sys.executable, program, folder], check=True, timeout=120, env=environ)
    return {path.name: path for path in folder.iterdir()}


def test_every_command_has_a_page(written):
    names = {"goodput.1", *(f"goodput-{name}.1" for name in command_names())}
    assert names <= set(written)
    assert {"goodput-token-create.1", "goodput-ledger-check.1", "goodput-probe-loader.1"} <= set(written)


def test_pages_are_the_same_for_every_user(written):
    texts = "".join(path.read_text() for path in written.values())
    assert "http://mine" not in texts and os.path.expanduser("~") + "/" not in texts.replace("/var/lib", "")


@pytest.mark.skipif(shutil.which("groff") is None, reason="not installed: groff")
def test_groff_has_no_warning_and_keeps_examples(written):
    shown = {}
    for name, path in written.items():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", path], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), name
        shown[name] = done.stdout.replace("\u2010", "-").replace("\u2212", "-")
    shown = {name: " ".join(text.split()) for name, text in shown.items()}
    assert "--push-interval SECONDS" in shown["goodput-node.1"]
    assert "goodput-serve - run the aggregator" in shown["goodput-serve.1"]
    assert "goodput serve --config /etc/goodput/serve.toml" in shown["goodput-serve.1"]
