"""Every C++ file is formatted as .clang-format says (clang-format 14, the one of Debian 12).

Usage: check_format.py [ROOT]; with --fix, formats in place.
"""

import pathlib
import subprocess
import sys

from source_tree import CXX_SUFFIXES, Tree

FILES_PER_RUN = 40


def check(root, fix=False):
    paths = Tree(root).paths(CXX_SUFFIXES)
    mode = ["-i"] if fix else ["--dry-run", "--Werror"]
    bad = 0
    for start in range(0, len(paths), FILES_PER_RUN):
        command = ["clang-format", *mode, *paths[start: start + FILES_PER_RUN]]
        run = subprocess.run(command, cwd=root, capture_output=True, text=True)
        # One line per file is enough: the cure is the same everywhere.
        files = {line.split(":")[0] for line in run.stderr.splitlines() if "error:" in line}
        for path in sorted(files):
            print(f"{path}: not formatted; run scripts/lint --fix")
        bad += len(files)
        if run.returncode != 0 and not files:
            print(run.stderr)
            bad += 1
    print(f"format: {bad} of {len(paths)} files" if bad else f"format: {len(paths)} files clean")
    return 1 if bad else 0


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--fix"]
    here = pathlib.Path(__file__).resolve().parents[2]
    sys.exit(check(arguments[0] if arguments else here, fix="--fix" in sys.argv))
