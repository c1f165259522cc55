# What run-uml and run-qemu share: options, the control folder that tells the guest what to run, and
# the way its output comes back. Sourced by both; sets `control` and fills it.

share=() pass=(PATH LD_LIBRARY_PATH)
memory=4G devices=1 iwarp='' limit_s=1800 kernel_log='' verbose='' cpus=2 numa=1

parse_options() {
  while (($# > 0)); do
    case $1 in
      --share) share+=("$(realpath "$2")"); shift 2 ;;
      --env) pass+=("$2"); shift 2 ;;
      --memory) memory=$2; shift 2 ;;
      --cpus) cpus=$2; shift 2 ;;
      --numa) numa=$2; shift 2 ;;
      --devices) devices=$2; shift 2 ;;
      --timeout) limit_s=$2; shift 2 ;;
      --log) kernel_log=$2; shift 2 ;;
      --iwarp) iwarp=1; shift ;;
      --verbose) verbose=1; shift ;;
      --) shift; break ;;
      -*) echo "rdma-vm: unknown option $1" >&2; exit 2 ;;
      *) break ;;
    esac
  done
  command=("$@")
  ((${#command[@]} > 0)) || { echo "rdma-vm: no command given" >&2; exit 2; }
}

# The command as a script: environment, working directory, exec.
write_command() {
  local name
  for name in "${pass[@]}"; do
    [[ -z ${!name+set} ]] || printf 'export %s=%q\n' "$name" "${!name}"
  done
  printf 'cd %q || exit 126\nexec' "$PWD"
  printf ' %q' "${command[@]}"
  echo
}

put_away() {
  [[ -z $kernel_log ]] || cp "$control/console" "$kernel_log" 2> /dev/null
  rm -rf "$control"
}

make_control() {
  control=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX")
  trap 'put_away' EXIT
  cp "$here/guest-run.sh" "$control/"
  write_command > "$control/command"
  local i=0 folder
  for folder in "${share[@]}"; do
    echo "$folder" > "$control/rw$i"
    i=$((i + 1))
  done
  mkfifo "$control/out" "$control/err"
  { cat; cat > /dev/null; } < "$control/out" & out_process=$!
  { cat >&2; cat > /dev/null; } < "$control/err" & err_process=$!
}

# After the guest's end: the rest of its output, then its command's exit status.
finish() {
  # Ends the two readers even if the guest never opened the pipes.
  exec 5<> "$control/out" 6<> "$control/err"
  exec 5>&- 6>&-
  wait "$out_process" "$err_process"
  [[ -z $verbose ]] || sed 's/\r$//' "$control/console" | grep 'rdma-vm' >&2
  [[ ! -s $control/status ]] || exit "$(cat "$control/status")"
  if [[ -e $control/timed-out ]]; then
    echo "rdma-vm: ended after $limit_s s" >&2
    tail -5 "$control/console" >&2
    exit 124
  fi
  echo "rdma-vm: the guest ended without a result" >&2
  tail -40 "$control/console" >&2
  exit 125
}
