#!/bin/sh
# After the installation or upgrade. A unit is not started before its options are written; one that runs is restarted.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    [ ! -e /usr/lib/tmpfiles.d/goodput.conf ] || systemd-tmpfiles --create /usr/lib/tmpfiles.d/goodput.conf || true
    systemctl daemon-reload || true
    systemctl try-restart @UNIT@ || true
fi
