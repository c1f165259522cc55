"""Every list of optimizers names the same ones under the same numbers.

What an optimizer computes is one file and one row in server/optim. To be asked for by name it also
stands in the public lists, which are part of the protocol, of the C ABI and of the Python package;
who forgets one of them learns it here.

Usage: check_optimizers.py [ROOT]
"""

import pathlib
import re
import sys

from source_tree import Tree, report

# Where: (part of the file's text that holds the list, an entry's name and number).
NUMBERED = {
    "common/tensor/job_spec.h": (r"enum class OptimizerKind[^{]*\{(.*?)\};",
                                 r"\bk(\w+) = (\d+),"),
    "proto/luwu/v1/types.proto": (r"enum OptimizerKind \{(.*?)\}",
                                  r"\bOPTIMIZER_KIND_(\w+) = (\d+);"),
    "client/include/luwu/luwu.h": (r"typedef enum luwu_optimizer \{(.*?)\}",
                                   r"\bLUWU_(\w+) = (\d+)"),
    "client/python/luwu/optimizers.py": (r"KINDS: [^=]*= \{(.*?)\}", r"\b(\w+): (\d+)"),
}
# Lists without numbers.
NAMED = {
    "server/optim/registry.cc": (r"kOptimizers\[\] = \{(.*?)\n\};", r"\{OptimizerKind::k(\w+),"),
    "common/tensor/optimizer_spec.cc": (
        r"OptimizerName\(OptimizerKind kind\) \{(.*?)\n\}",
        r"case OptimizerKind::k(\w+):\s*return \"\w"),
}


def entries(tree, path, patterns):
    """{lower-case name: number, or None} of a list; None when the file has no such list."""
    outer, inner = patterns
    if not (tree.root / path).is_file():
        return None
    match = re.search(outer, tree.text(path), re.DOTALL)
    if match is None:
        return None
    found = {}
    for entry in re.finditer(inner, match.group(1)):
        number = int(entry.group(2)) if len(entry.groups()) > 1 else None
        found[entry.group(1).lower()] = number
    found.pop("unspecified", None)
    return found


def check(root):
    tree = Tree(root)
    lists = {path: entries(tree, path, patterns)
             for path, patterns in {**NUMBERED, **NAMED}.items()}
    problems = [f"{path}:1: its list of optimizers is not found"
                for path, found in lists.items() if not found]
    if problems:
        return problems
    first = next(iter(NUMBERED))
    for path, found in lists.items():
        for name in sorted(lists[first].keys() | found.keys()):
            if name not in found or name not in lists[first]:
                there, missing = (first, path) if name not in found else (path, first)
                problems.append(f"{missing}:1: lacks the optimizer '{name}' of {there}")
            elif path in NUMBERED and found[name] != lists[first][name]:
                problems.append(f"{path}:1: '{name}' is {found[name]}, in {first} it is "
                                f"{lists[first][name]}")
    return problems


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[2]
    sys.exit(report(check(sys.argv[1] if len(sys.argv) > 1 else here), "optimizers"))
