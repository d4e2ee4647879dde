"""Files in a page directory that are not sound rank pages."""

import os

from support.node.node_rank import Rank

from goodput.rank_page import page


def plant_hostile(directory) -> dict[str, str]:
    """Bad pages of every kind; {file name: the reason that it is to be counted under}."""
    (directory / "random.page").write_bytes(os.urandom(100_000))
    (directory / "empty.page").write_bytes(b"")
    os.mkfifo(directory / "fifo.page")
    (directory / "folder.page").mkdir()
    (directory / "link.page").symlink_to("/etc/passwd")
    (directory / "socket.page").symlink_to(directory / "nowhere")
    version = Rank(directory, run="version")
    version.words[page.W_VERSION] = 99
    short = Rank(directory, run="short")
    os.truncate(short.path, page.FILE_BYTES // 2)
    lying = Rank(directory, run="lying")
    lying.words[page.W_IDENTITY_BYTES] = 1 << 40
    text = Rank(directory, run="text")
    text.words[8] = 0x22FF22FF
    phase = Rank(directory, run="phase")
    phase.words[page.W_PHASE] = 1 << 60
    ended = Rank(directory, run="ended")
    ended.words[page.W_END] = (1 << 64) - 1  # Would not fit a report.
    event = Rank(directory, run="event")
    page.write_event(event.words, "mark", (1 << 64) - 1, 0, b"")
    return {
        "random.page": "foreign", "empty.page": "truncated", "fifo.page": "foreign", "folder.page": "foreign",
        "link.page": "unreadable", "socket.page": "unreadable", os.path.basename(version.path): "version",
        os.path.basename(short.path): "truncated", os.path.basename(lying.path): "identity",
        os.path.basename(text.path): "identity", os.path.basename(phase.path): "value",
        os.path.basename(ended.path): "value", os.path.basename(event.path): "value",
    }  # fmt: skip
