"""File systems on the host's own disks, and in its memory."""
