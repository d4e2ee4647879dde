"""Renders overlays of deploy/kubernetes with kustomize or kubectl; skips the test where neither is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY


def kustomize(folder: Path) -> str:
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            return done.stdout
    pytest.skip("not installed: kustomize or kubectl")


def copied_tree(root: Path) -> Path:
    """A copy of deploy/, and of what it refers to, with the rules that `make kubernetes` writes."""
    for folder in ("deploy", "dashboards/generated"):
        shutil.copytree(DEPLOY.parent / folder, root / folder)
    written = root / "deploy" / "kubernetes" / "components" / "prometheus-operator" / "rules.yaml"
    written.unlink(missing_ok=True)
    subprocess.run([sys.executable, root / "deploy" / "kubernetes" / "rules.py"], check=True)
    assert written.is_file()
    return root
