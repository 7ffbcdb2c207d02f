#!/bin/bash
# Install what Debian has of the programs that tests need, unless they are here. Needs root and apt-get.
set -euo pipefail

lacking=()
need() { # program package
    command -v "$1" >/dev/null || lacking+=("$2")
}

need promtool prometheus
need strace strace
need systemd-analyze systemd
need openssl openssl
need chromium chromium
need chromedriver chromium-driver
need logrotate logrotate
need rpmbuild rpm
need buildah buildah
need docker-registry docker-registry
need ip iproute2
need debootstrap debootstrap
need /usr/bin/python3 python3
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || lacking+=(python3-venv)
need qemu-system-x86_64 qemu-system-x86
need mke2fs e2fsprogs
need slurmctld slurmctld
need slurmd slurmd
need slurmrestd slurmrestd
need slurmdbd slurmdbd
need scontrol slurm-client
need mariadbd mariadb-server
need tsp task-spooler
need sge_qmaster gridengine-master
need sge_execd gridengine-exec
need qsub gridengine-client
compgen -G "/usr/lib/*/slurm-wlm/auth_jwt.so" >/dev/null || lacking+=(slurm-wlm-jwt-plugin)
compgen -G "/usr/lib/*/slurm-wlm/accounting_storage_mysql.so" >/dev/null || lacking+=(slurm-wlm-mysql-plugin)

[ ${#lacking[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "The tests that need these are skipped: ${lacking[*]}. Debian packages: install them, or run 'make tools' as root." >&2
    exit 0
fi
echo "Installing ${lacking[*]} ..."
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${lacking[@]}" >/dev/null
