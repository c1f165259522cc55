"""Include graph of common, server, client and bench against the dependency rule.

    proto <- common <- {client, server};  client and server never include each other.

A module is a folder (or a few named files). ARROWS says which modules each may include; arrows are
transitive. CONTAINED says which third-party and generated headers may be included from where.
Headers must not include each other in a circle.

Usage: check_layering.py [ROOT]
"""

import pathlib
import sys

from source_tree import CXX_SUFFIXES, Tree, includes, report

ARROWS = {
    "common/base": [],
    "common/tensor": ["common/base"],
    "common/wire": ["common/tensor"],
    "common/config": ["common/base"],
    "common/transport": ["common/base"],
    "common/doctor": ["common/transport"],
    "common/rpc": ["common/transport", "common/wire", "common/config"],
    "server/optim": ["common/tensor"],
    "server/persist": ["common/base"],
    "server/store": ["server/optim", "server/persist", "common/wire", "common/transport"],
    "server/interchange": ["common/wire"],
    "server/session": ["common/wire", "common/transport"],
    "server/step": ["server/optim", "server/store", "server/session"],
    "server/cluster": ["server/step"],
    "server/service": [
        "server/step", "server/cluster", "server/interchange", "common/doctor", "common/rpc",
    ],
    "server/metrics": ["server/service"],
    "server/ops": ["common/base"],
    "server/config": ["common/config", "common/tensor", "common/transport", "server/persist"],
    "server/daemon": ["server/service", "server/metrics", "server/ops", "server/config"],
    "server/main": ["server/daemon"],
    "client/include": [],
    "client/src": ["client/include", "common/rpc"],
    "client/cli": ["client/include", "common/doctor", "common/rpc"],
}

# Files that are a module of their own inside a folder of others.
FILE_MODULES = {
    "server/config.h": "server/config",
    "server/config.cc": "server/config",
    "server/config_security.h": "server/config",
    "server/config_security.cc": "server/config",
    "server/daemon.h": "server/daemon",
    "server/daemon.cc": "server/daemon",
    "server/main.cc": "server/main",
}

GRPC_USERS = [
    "common/rpc/",
    "server/service/",
    "server/daemon.cc",
    "client/src/session",
    "client/cli/",
]
PROGRAMS = ["server/main.cc", "client/cli/"]

# (start of an include as written, who may use it). The first row that fits counts.
CONTAINED = [
    ("<grpcpp/", GRPC_USERS),
    ("<grpc/", GRPC_USERS),
    ("<google/protobuf/", GRPC_USERS),
    ('"luwu/v1/', GRPC_USERS),
    ('"grpc/', GRPC_USERS),
    ("<toml++/", ["common/config/config_reader.cc"]),
    ("<hwy/", ["server/optim/", "common/tensor/"]),
    ("<CLI/", PROGRAMS),
    ("<nlohmann/", PROGRAMS + ["common/rpc/", "server/interchange/"]),
    ("<openssl/", ["common/base/hmac.cc", "common/base/tls_"]),
    ("<infiniband/", ["common/transport/verbs/"]),
    ("<isa-l/", ["common/base/crc32c.cc"]),
    ("<xxhash.h", ["common/tensor/fingerprint.cc"]),
    ("<spdlog/", ["common/base/log.cc"]),
    ("<absl/container/", ["common/", "server/", "client/src/"]),
    ("<absl/", ["common/base/"]),
    ("<gtest/", []),
    ("<gmock/", []),
    ("<benchmark/", []),
    ("<rocksdb/", ["server/persist/"]),
    ("<prometheus/", ["server/metrics/"]),
    ("<liburing.h>", ["server/persist/"]),
    ("<infiniband/", []),
    ("<cuda", ["client/src/device/"]),
]

CHECKED_FOLDERS = ("common/", "server/", "client/")


def module_of(path):
    if path in FILE_MODULES:
        return FILE_MODULES[path]
    fitting = [module for module in ARROWS if path.startswith(module + "/")]
    return max(fitting, key=len, default=None)


def reachable(module):
    seen = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(ARROWS[current])
    return seen


def check_contained(path, line, include):
    for start, users in CONTAINED:
        if include.startswith(start):
            if any(path.startswith(user) for user in users):
                return []
            allowed = ", ".join(users) or "nowhere outside tests"
            return [f"{path}:{line}: {include} may be included from: {allowed}"]
    return []


def check_arrow(path, line, include, tree):
    target = include[1:-1]
    # Public headers, as users of the library include them and as they include each other.
    if target in ("luwu/luwu.h", "luwu/luwu.hpp"):
        target = f"client/include/{target}"
    elif path.startswith("client/include/luwu/") and "/" not in target:
        target = f"client/include/luwu/{target}"
    if target.startswith("luwu/v1/") or target.startswith("grpc/"):
        return []  # generated
    if not target.startswith(CHECKED_FOLDERS):
        return [f"{path}:{line}: write {include} as a path from the root of the repository"]
    if not (tree.root / target).is_file():
        return [f"{path}:{line}: {include} does not exist"]
    source_module = module_of(path)
    target_module = module_of(target)
    if source_module is None or target_module is None:
        unknown = path if source_module is None else target
        return [f"{path}:{line}: {unknown} belongs to no module; add it to ARROWS"]
    if target_module not in reachable(source_module):
        return [f"{path}:{line}: {source_module} must not include {target_module} ({target})"]
    return []


def find_circles(graph):
    """One message for each header circle found by depth-first search."""
    problems = []
    done = set()

    def visit(path, trail):
        if path in trail:
            circle = trail[trail.index(path):] + [path]
            problems.append(f"{path}:1: includes itself through " + " -> ".join(circle))
            return
        if path in done:
            return
        for target in graph.get(path, []):
            visit(target, trail + [path])
        done.add(path)

    for path in graph:
        visit(path, [])
    return problems


def check(root):
    tree = Tree(root)
    problems = []
    graph = {}
    for path in tree.paths(CXX_SUFFIXES):
        if not path.startswith(CHECKED_FOLDERS):
            continue
        if module_of(path) is None:
            problems.append(f"{path}:1: belongs to no module; add it to ARROWS")
        graph[path] = []
        for line, include in includes(tree.text(path)):
            problems += check_contained(path, line, include)
            if include.startswith('"'):
                problems += check_arrow(path, line, include, tree)
                graph[path].append(include[1:-1])
    return problems + find_circles(graph)


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[2]
    sys.exit(report(check(sys.argv[1] if len(sys.argv) > 1 else here), "layering"))
