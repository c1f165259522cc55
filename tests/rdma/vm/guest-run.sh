# Runs inside the guest, in the shared root: network addresses, RDMA devices, the command, its exit
# status. run-uml and run-qemu copy it to the control folder. Starts few processes, because each
# costs 50 to 100 ms there.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
control=/run/rdma-vm
devices=1 iwarp='' verbose='' ethernet='' address=''
read -r command_line < /proc/cmdline
for word in $command_line; do
  case $word in
    rv.ndev=*) devices=${word#*=} ;;
    rv.siw=*) iwarp=1 ;;
    rv.debug=*) verbose=1 ;;
    rv.eth=*) ethernet=${word#*=} ;;
    rv.addr=*) address=${word#*=} ;;
  esac
done

say() {
  [[ -n $verbose ]] || return 0
  local uptime
  read -r uptime _ < /proc/uptime
  echo "<1>rdma-vm[$uptime] $*" > /dev/kmsg
}

say start
ulimit -l unlimited
ulimit -n 65536 2> /dev/null
ulimit -c 0
echo rdma-vm > /proc/sys/kernel/hostname
# IPv6 addresses without the wait of 1 to 2 s for a duplicate.
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad 2> /dev/null

# One device: rxe0 on rv0, 10.77.0.1. Two: rxe1 on the other end of the same pair, 10.77.0.2, and
# rules that send what passes between the two addresses over the wire instead of lo.
{
  echo "link set lo up"
  if [[ -n $ethernet ]]; then
    echo "link set $ethernet name rv0"
    echo "link set rv0 mtu 4200"
  else
    echo "link add rv0 mtu 4200 type veth peer name rvp0 mtu 4200"
    echo "link set rvp0 up"
  fi
  echo "addr add ${address:-10.77.0.1/24} dev rv0"
  echo "link set rv0 up"
  if ((devices >= 2)); then
    echo "addr add 10.77.0.2/24 dev rvp0"
    echo "rule add pref 101 from 10.77.0.1 to 10.77.0.2 iif lo lookup 101"
    echo "rule add pref 102 from 10.77.0.2 to 10.77.0.1 iif lo lookup 102"
    echo "route add 10.77.0.2 dev rv0 table 101"
    echo "route add 10.77.0.1 dev rvp0 table 102"
    echo "rule del pref 0"
    echo "rule add pref 200 lookup local"
  fi
} > /run/ip.batch
ip -batch /run/ip.batch || echo "rdma-vm: setting up addresses failed" >&2
if ((devices >= 2)); then
  for interface in all rv0 rvp0; do
    echo 1 > "/proc/sys/net/ipv4/conf/$interface/accept_local"
    echo 0 > "/proc/sys/net/ipv4/conf/$interface/rp_filter"
  done
fi
say addresses

# Soft-iWARP replaces Soft-RoCE: with both on one interface nobody could say which is meant.
kind=rxe
[[ -z $iwarp ]] || kind=siw
{
  echo "link add ${kind}0 type $kind netdev rv0"
  ((devices < 2)) || echo "link add ${kind}1 type $kind netdev rvp0"
} > /run/rdma.batch
rdma -b /run/rdma.batch || echo "rdma-vm: making RDMA devices failed" >&2
say devices

# User-mode Linux has serial lines, QEMU virtio ports.
out=/dev/ttyS0 err=/dev/ttyS1
if [[ -d /sys/class/virtio-ports ]]; then
  for port in /sys/class/virtio-ports/*; do
    read -r name < "$port/name"
    case $name in
      out) out=/dev/${port##*/} ;;
      err) err=/dev/${port##*/} ;;
    esac
  done
else
  for line in $out $err; do stty -F "$line" raw -echo; done
fi
exec 3> >(exec cat > "$out")
out_process=$!
exec 4> >(exec cat > "$err")
err_process=$!
(. $control/command) >&3 2>&4 4>&- 3>&- < /dev/null
status=$?
exec 3>&- 4>&-
wait $out_process $err_process 2> /dev/null
echo $status > $control/status.part
mv $control/status.part $control/status
say "finished with $status"
