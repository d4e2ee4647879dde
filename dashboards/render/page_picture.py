"""Writes a picture of the built-in page: runs the demo, keeps its page served, takes a screenshot, ends it.

python -m dashboards.render.page_picture docs/page.png
"""

import os
import re
import shutil
import signal
import subprocess
import sys

from playwright.sync_api import sync_playwright


def main(target: str) -> int:
    command = [sys.executable, "-m", "goodput", "demo", "--seconds", "45", "--keep"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = re.search(r"page: (http://\S+) .*kill (\d+)", done.stdout)
    if found is None:
        print(done.stdout, file=sys.stderr)
        return 1
    try:
        screenshot(found.group(1), target)
    finally:
        os.kill(int(found.group(2)), signal.SIGTERM)
    return 0


def screenshot(address: str, target: str, *, width: int = 1400, color_scheme: str = "light") -> None:
    """The whole page, once its timeline is drawn."""
    with sync_playwright() as playwright:
        # Debian's chromium; its sandbox does not work for root.
        executable = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=color_scheme)
        page.goto(address)
        page.wait_for_selector("#timeline-picture svg", timeout=60_000)
        page.wait_for_timeout(1000)
        page.screenshot(path=target, full_page=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
