#!/bin/sh
# After the installation or upgrade of goodput: the user and group that own its files. Debian's and RPM's in one.
# In another root (dpkg --root) nothing of this machine is touched.
if [ -z "${DPKG_ROOT:-}" ] && command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers /usr/lib/sysusers.d/goodput.conf || true
fi
