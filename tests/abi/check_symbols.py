"""libluwu exports exactly the recorded symbols, and those are exactly what luwu.h declares.

    check_symbols.py LIBRARY SYMBOLS HEADER

A new function is added to symbols.txt with its version; a line is never removed or changed.
"""

import re
import subprocess
import sys


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    names = [line.split()[-1] for line in lines]
    return sorted(name for name in names if not re.fullmatch(r"LUWU_\d+\.\d+", name.split("@")[0]))


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", open(header, encoding="utf-8").read(), flags=re.S)
    return sorted(re.findall(r"LUWU_API[^;]*?\b(luwu_\w+)\s*\(", text))


def main():
    library, symbols, header = sys.argv[1:]
    recorded = open(symbols, encoding="utf-8").read().split()
    status = 0
    for name in sorted(set(exported(library)) ^ set(recorded)):
        print(f"{name}: {'not recorded' if name not in recorded else 'not exported'}")
        status = 1
    for name in sorted(set(declared(header)) ^ {symbol.split("@")[0] for symbol in recorded}):
        print(f"{name}: declared in luwu.h or recorded, not both")
        status = 1
    if not recorded:
        print("symbols.txt is empty")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
