"""The lock of a page directory that everybody may write to: no other user can take it, whatever lies under its name."""

import fcntl
import os
import stat

import pytest
from support.other_users import ATTACKER, as_root, run_as

from goodput_exporters.directory_lock import NAME, DirectoryInUse, DirectoryLock


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages").chmod(0o1777)
    return tmp_path / "pages"


def locked(path, mode: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_lock_is_for_the_agent_alone(shared):
    lock, second = DirectoryLock(str(shared)), DirectoryLock(str(shared))
    assert lock.hold() and lock.hold()
    assert stat.S_IMODE((shared / NAME).stat().st_mode) == 0o600
    assert os.listdir(shared) == [NAME]
    with pytest.raises(DirectoryInUse, match="another agent already uses"):
        second.hold()
    assert second.holder() == os.getpid()
    lock.release()
    assert second.hold() and lock.holder() == os.getpid()
    second.release()
    assert lock.holder() == 0


@as_root
def test_no_other_user_can_open_the_lock(shared):
    lock = DirectoryLock(str(shared))
    assert lock.hold()

    def attack():
        for flags in (os.O_RDONLY, os.O_RDWR):
            with pytest.raises(PermissionError):
                os.open(NAME, flags)
        with pytest.raises(PermissionError):
            os.unlink(NAME)
        with pytest.raises(PermissionError):
            os.rename(NAME, "gone")

    run_as(ATTACKER, attack, shared)
    lock.release()


@as_root
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_lock_of_another_user_is_replaced(shared, mode):
    """Made before the agent came and locked for good: before, the agent did not start."""
    fd = locked(shared / NAME, mode)
    os.fchown(fd, ATTACKER, -1)
    lock = DirectoryLock(str(shared))
    assert lock.holder() == 0
    assert lock.hold() and (shared / NAME).stat().st_uid == 0
    with pytest.raises(DirectoryInUse):
        DirectoryLock(str(shared)).hold()
    lock.release()
    os.close(fd)


def test_lock_that_others_may_open_is_replaced(shared):
    """An older agent's file. That agent finds its file gone and the new one held, and ends."""
    fd = locked(shared / NAME, 0o644)
    lock = DirectoryLock(str(shared))
    assert lock.hold()
    assert os.fstat(fd).st_nlink == 0
    lock.release()
    os.close(fd)


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_what_is_no_file_is_replaced(shared, tmp_path, kind):
    other = tmp_path / "other"
    if kind == "link":
        other.write_text("precious")
    if kind in ("link", "dangling"):
        (shared / NAME).symlink_to(other)
    elif kind == "fifo":
        os.mkfifo(shared / NAME)
    else:
        (shared / NAME).mkdir()
    lock = DirectoryLock(str(shared))
    assert lock.hold() and stat.S_ISREG(os.lstat(shared / NAME).st_mode)
    assert other.exists() == (kind == "link")
    lock.release()


@as_root
def test_agent_of_another_user_leaves_roots_lock(shared):
    """A file of root that the agent cannot open: the kernel's list of locks shows that it is held."""
    lock = DirectoryLock(str(shared))
    assert lock.hold()

    def try_it():
        with pytest.raises(DirectoryInUse):
            DirectoryLock(".").hold()

    run_as(ATTACKER, try_it, shared)
    lock.release()


def test_missing_or_closed_directory_has_no_lock(tmp_path):
    assert not DirectoryLock(str(tmp_path / "none")).hold()
