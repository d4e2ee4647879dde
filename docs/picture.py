"""A picture of the built-in page: runs the demo, leaves its page up, takes a screenshot, ends it.

python docs/picture.py docs/page.png
"""

import os
import re
import signal
import subprocess
import sys
import tempfile


def main(target: str) -> int:
    command = [sys.executable, "-m", "goodput", "demo", "--seconds", "45", "--keep"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = re.search(r"page: (http://\S+) .*kill (\d+)", done.stdout)
    if found is None:
        print(done.stdout, file=sys.stderr)
        return 1
    try:
        return screenshot(found.group(1), target)
    finally:
        os.kill(int(found.group(2)), signal.SIGTERM)


def screenshot(address: str, target: str) -> int:
    """Headless Chromium's picture of the page, 1400 pixels wide."""
    options = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --window-size=1400,3080 --virtual-time-budget=9000"
    )
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium",
            *options.split(),
            f"--user-data-dir={profile}",
            f"--screenshot={target}",
            address,
        ]
        return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
