#!/bin/sh
# After the installation or upgrade. A unit is not started before its options are written; one that runs is restarted.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    unit=@UNIT@
    if [ -e /usr/lib/systemd/system/run-goodput.mount ] && [ "$unit" = goodput-node.service ]; then
        systemctl daemon-reload || true
        systemctl enable run-goodput.mount || true
        # It would hide the pages of ranks that run now; then it is mounted at the next boot.
        [ -n "$(find /run/goodput -name '*.page' -print -quit 2>/dev/null)" ] || systemctl start run-goodput.mount || true
    fi
    [ ! -e /usr/lib/tmpfiles.d/goodput.conf ] || systemd-tmpfiles --create /usr/lib/tmpfiles.d/goodput.conf || true
    systemctl daemon-reload || true
    systemctl try-restart @UNIT@ || true
fi
