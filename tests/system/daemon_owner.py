"""Starts two daemons, prints their pids and an endpoint, and waits: a process that a test can kill.

Usage: daemon_owner.py LUWUD FOLDER main|thread (which thread starts them; a second one ends then)
"""

import json
import sys
import threading

from cluster import Cluster


def main() -> None:
    binary, folder, thread = sys.argv[1:]
    cluster = Cluster(binary, nodes=2, memory="64MiB", folder=folder)
    if thread == "thread":
        starter = threading.Thread(target=cluster.start)
        starter.start()
        starter.join()
    else:
        cluster.start()
    pids = [daemon.pid for daemon in cluster.daemons]
    print(json.dumps({"pids": pids, "endpoint": cluster.nodes[0].control}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
