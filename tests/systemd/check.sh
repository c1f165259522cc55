#!/bin/bash
# The unit under a real systemd: one line "ok NAME" or "FAILED NAME: why" for each thing, to
# $OUT/report; the last line is "done".
set -uo pipefail
exec >> "$OUT/report" 2>&1
trap 'journalctl --no-pager > "$OUT/journal" 2>&1; echo "done"' EXIT

show() { systemctl show -p "$1" --value luwud; }
check() {  # check NAME COMMAND...
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then echo "ok $name"; else echo "FAILED $name: $* said: $said"; fi
}
# shellcheck disable=SC2053  # a pattern is wanted
is() {
  local value
  value=$(show "$1")
  [[ $value == $2 ]] || { echo "$1=$value, not $2"; false; }
}
await() {  # await SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null; do ((SECONDS < end)) || { "$@"; return 1; }; sleep 0.2; done
}
new_process() {
  local now
  now=$(show MainPID)
  [[ $now != "$1" && $now != 0 ]] && systemctl -q is-active luwud
}

check start systemctl start luwud
check active is ActiveState active
check status_text await 60 is StatusText 'jobs served: 0*'
check runs_as_luwu test "$(ps -o user= -p "$(show MainPID)")" = luwu
check answers luwuctl status
check memlock test "$(prlimit --memlock --noheadings -o SOFT -p "$(show MainPID)")" = unlimited
check capabilities grep -q $'^CapEff:\t0000000000004000' "/proc/$(show MainPID)/status"
check reload systemctl reload luwud
check active_after_reload is ActiveState active
first=$(show MainPID)
kill -9 "$first"
check restarts_after_a_kill await 120 new_process "$first"
check counts_the_restart is NRestarts 1
second=$(show MainPID)
kill -STOP "$second"
check watchdog_ends_a_frozen_daemon await 240 new_process "$second"
check result_of_the_watchdog \
  bash -c "journalctl --no-pager | grep -q 'luwud.service: Watchdog timeout'"
check stop systemctl stop luwud
check exit_status is ExecMainStatus 0
check inactive is ActiveState inactive
echo 'nonsense = 1' >> /etc/luwu/luwud.toml
systemctl start luwud 2> /dev/null
check wrong_file_is_not_tried_again is NRestarts 0
check wrong_file_fails is ActiveState failed
check wrong_file_status is ExecMainStatus 2
