#!/bin/bash
# Runs in the QEMU guest (scripts/rdma-vm --qemu): boots systemd in namespaces of its own, with
# luwud installed as docs/operating/service.md says, and check.sh as the only other unit. What that
# finds comes back in OUT/report, and the journal in OUT/journal.
#
#   guest.sh LUWUD LUWUCTL SOURCE OUT
set -euo pipefail
luwud=$1 luwuctl=$2 source=$3 out=$4

install -m 755 "$luwud" /usr/bin/luwud
install -m 755 "$luwuctl" /usr/bin/luwuctl
units=/etc/systemd/system
install -D -m 644 "$source/deploy/systemd/luwud.service" $units/luwud.service
install -D -m 644 "$source/deploy/systemd/luwud.sysusers" /usr/lib/sysusers.d/luwud.conf
install -D -m 644 "$source/deploy/systemd/luwud.tmpfiles" /usr/lib/tmpfiles.d/luwud.conf
systemd-sysusers luwud.conf
mkdir -p /etc/luwu
cat > /etc/luwu/luwud.toml << 'TOML'
[node]
name = "node0"
[memory]
budget = "256MiB"
[storage]
path = "/var/lib/luwu/data"
[log]
journald = true
[[nodes]]
name = "node0"
control = "127.0.0.1:7070"
data = "127.0.0.1:7071"
shm = "/run/luwu/luwud.sock"
TOML
chgrp luwu /etc/luwu/luwud.toml && chmod 640 /etc/luwu/luwud.toml

cat > $units/check.service << UNIT
[Unit]
Wants=basic.target
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=OUT=$out
ExecStart=/bin/bash $source/tests/systemd/check.sh
TimeoutStartSec=1500
UNIT
# Nothing else of the host's.
ln -sf check.service $units/default.target
for unit in systemd-udevd systemd-udev-trigger systemd-networkd systemd-resolved systemd-timesyncd \
    systemd-logind getty@ cron systemd-binfmt systemd-update-utmp apt-daily.timer; do
  ln -sf /dev/null "$units/$unit.service"
done
: > /etc/fstab
mount -t cgroup2 none /sys/fs/cgroup
exec unshare --pid --mount --cgroup --fork --mount-proc \
  env -i container=luwu-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=check.service --log-target=journal --show-status=no
