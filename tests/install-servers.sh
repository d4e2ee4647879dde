#!/bin/sh
# The real servers that tests start by themselves: Prometheus, VictoriaMetrics, Alertmanager, node_exporter, PostgreSQL, NATS,
# Chromium, Slurm; openssl, for certificates, rpm, for packages, and tmux, a terminal.
# Without apt or without the rights for it, the tests that need them are skipped, and say so.
set -u
missing=""
for pair in prometheus:prometheus promtool:prometheus prometheus-alertmanager:prometheus-alertmanager \
    chromium-headless-shell:chromium-headless-shell \
    victoria-metrics:victoria-metrics nats-server:nats-server haproxy:haproxy \
    prometheus-node-exporter:prometheus-node-exporter openssl:openssl rpm:rpm tmux:tmux slurmctld:slurmctld slurmd:slurmd; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
# Debian keeps PostgreSQL's programs off the path, by version.
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "skipping the installation of$missing: no apt-get here; the tests that need them will be skipped"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "skipping the installation of$missing: not root; run 'sudo $0' to have the tests that need them"
    exit 0
fi
# A package's service must not start: the tests start servers of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null
known=""
for package in $missing; do
    if apt-cache show "$package" >/dev/null 2>&1; then
        known="$known $package"
    else
        echo "not in this distribution: $package; the tests that need it will be skipped"
    fi
done
# shellcheck disable=SC2086
[ -z "$known" ] || apt-get install -y -qq --no-install-recommends $known >/dev/null ||
    echo "could not install$known; the tests that need them will be skipped"
exit 0
