#!/bin/sh
# Before the removal ("remove" on Debian, 0 with RPM), and not before an upgrade.
case "${1:-}" in
    remove | 0)
        if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
            systemctl disable --now @UNIT@ || true
            # Not unmounted: ranks may have pages there.
            unit=@UNIT@
            [ "$unit" != goodput-node.service ] || systemctl disable run-goodput.mount || true
        fi
        ;;
esac
