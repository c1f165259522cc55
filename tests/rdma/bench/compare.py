"""Our READ and WRITE beside perftest's on the same device: bandwidth of 1 MiB messages as a share
of ib_write_bw and ib_read_bw, latency of a small READ as a multiple of ib_read_lat. Prints JSON.

    scripts/rdma-vm -- python3 tests/rdma/bench/compare.py build/release/bin/luwu-rdma-bench 5

Both take turns, and medians are compared: a busy machine slows both alike.
"""

import json
import statistics
import subprocess
import sys

DEVICE = "rxe0"
GID_INDEX = "1"


def perftest(program, arguments, column):
    """The last line's `column` of a client, with a server of the same program beside it."""
    command = [program, "-d", DEVICE, "-x", GID_INDEX, "-F", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            client = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True,
                                    check=False)
            if client.returncode == 0:
                break
        server.wait(timeout=60)
    finally:
        server.kill()
    lines = [line.split() for line in client.stdout.splitlines()]
    rows = [line for line in lines if line and line[0].isdigit() and len(line) > column]
    if not rows:
        raise SystemExit(f"{program} gave no result: {client.stdout}{client.stderr}")
    return float(rows[-1][column])


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    bulk = ["-s", "1048576", "-n", "400"]
    mib = 1.048576
    ours, peers = [], {"ib_write_bw": [], "ib_read_bw": [], "ib_read_lat": []}
    for _ in range(rounds):
        done = subprocess.run([sys.argv[1], "--bytes", str(400 << 20)], check=True,
                              capture_output=True, text=True)
        ours.append(json.loads(done.stdout))
        peers["ib_write_bw"].append(perftest("ib_write_bw", bulk, 3) * mib)
        peers["ib_read_bw"].append(perftest("ib_read_bw", bulk, 3) * mib)
        peers["ib_read_lat"].append(perftest("ib_read_lat", ["-s", "64", "-n", "2000"], 4))
    median = {key: statistics.median(run[key] for run in ours)
              for key in ours[0] if key.endswith(("_per_s", "_us"))}
    ceiling = {key: statistics.median(values) for key, values in peers.items()}
    print(json.dumps({
        "rounds": rounds, "ours": median, "perftest": ceiling,
        "write_of_ib_write_bw": round(median["write_MB_per_s"] / ceiling["ib_write_bw"], 3),
        "read_of_ib_read_bw": round(median["read_MB_per_s"] / ceiling["ib_read_bw"], 3),
        "staged_write_of_ib_write_bw":
            round(median["staged_write_MB_per_s"] / ceiling["ib_write_bw"], 3),
        "staged_read_of_ib_read_bw":
            round(median["staged_read_MB_per_s"] / ceiling["ib_read_bw"], 3),
        "read_latency_of_ib_read_lat": round(median["read_64_us"] / ceiling["ib_read_lat"], 2),
    }, indent=1))


if __name__ == "__main__":
    main()
