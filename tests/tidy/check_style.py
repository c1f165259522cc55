"""House style that can be checked by reading: lengths, banned names, leftovers, dead files.

allowed.txt lists the exceptions, one a line: "rule path reason". An entry that excuses nothing is
itself a problem.

Usage: check_style.py [ROOT]
"""

import ast
import pathlib
import re
import sys

from cxx_functions import functions
from source_tree import CXX_SUFFIXES, Tree, blank, includes, report

COLUMNS_MAX = 100
LINES_MAX = {".h": 250, ".hpp": 250, ".cc": 500, ".c": 500, ".py": 500, ".sh": 500}
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
COLUMN_SUFFIXES = {".h", ".hpp", ".cc", ".c", ".py", ".sh", ".proto", ".cmake", ".toml"}
NAME_PATTERN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_.]+)?")

# (rule, pattern, why, folders or files where it is allowed)
BANNED = [
    ("std-format", r"std::v?format\b|<format>", "clang 14 has no <format>; use fmt::format", []),
    ("std-views", r"std::(ranges::)?views\b", "fails in clang 14; write a loop", []),
    ("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep)\b|::sleep\(",
     "wait for an event with a deadline", ["tests/"]),
    ("absl-mutex", r"absl::(Mutex|MutexLock|CondVar)\b",
     "use luwu::Mutex, common/base/sync.h", []),
    ("absl-string-view", r"absl::(string_view|optional|variant|any)\b",
     "Debian's Abseil has types of its own; use std", []),
    ("std-mutex", r"std::(recursive_|shared_|timed_)?mutex\b|std::condition_variable\b",
     "use luwu::Mutex, which clang can check", ["common/base/sync.h", "tests/"]),
    # A smart pointer that takes it in the same expression is fine (private constructors need it).
    ("raw-new", r"(?<![\w:])(?<!>\()(?<!\w\()new\s+(\(|[A-Za-z_:])|\bdelete(\[\])?\s+\w",
     "own through a container or unique_ptr", ["tests/"]),
    ("reinterpret-cast", r"\breinterpret_cast\b",
     "only wire, transport and memory code may look at bytes so",
     ["common/wire/", "common/transport/", "common/base/memory.cc", "server/store/",
      "server/session/board_writer.cc", "tests/"]),
    ("detached-thread", r"\.detach\(\)", "every thread is joined", []),
    ("plain-assert", r"(?<![\w_])assert\(|<cassert>", "use LUWU_CHECK", []),
    ("using-namespace", r"^\s*using namespace\b", "write the names out", []),
    ("std-rand", r"\b(s?rand|drand48)\(", "use <random>", []),
    ("print", r"std::(cout|cerr)\b|\b(std::)?f?printf\(|\b(std::)?puts\(",
     "use the log (a library never prints)",
     ["server/main.cc", "client/cli/", "common/base/check.cc", "tests/"]),
]

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP|TBD)\b|\b[Nn]ot (yet )?implemented")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(home|root|work|Users|mnt|media)/\w")
CMAKE_SUFFIXES = {".cmake"}


class Checker:
    def __init__(self, root):
        self.tree = Tree(root)
        self.problems = []
        self.allowed = {}  # (rule, path) -> used
        self.read_allowed()

    def read_allowed(self):
        path = "tests/tidy/allowed.txt"
        if not (self.tree.root / path).is_file():
            return
        for number, line in enumerate(self.tree.text(path).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split(None, 2)
            if len(fields) < 3:
                self.problems.append(f"{path}:{number}: write 'rule path reason'")
            else:
                self.allowed[fields[0], fields[1]] = False

    def add(self, rule, path, line, text):
        if (rule, path) in self.allowed:
            self.allowed[rule, path] = True
            return
        self.problems.append(f"{path}:{line}: [{rule}] {text}")

    def run(self):
        own = "tests/tidy/"  # these files quote what they look for
        for path in self.tree.paths():
            text = self.tree.text(path)
            if text is None:
                continue
            suffix = pathlib.Path(path).suffix
            self.check_text(path, text, suffix)
            if not path.startswith(own):
                self.check_leftovers(path, text)
            if suffix in CXX_SUFFIXES:
                self.check_cxx(path, text)
            if suffix == ".py":
                self.check_python(path, text)
        self.check_dead_files()
        for (rule, path), used in self.allowed.items():
            if not used:
                self.problems.append(f"tests/tidy/allowed.txt:1: '{rule} {path}' excuses nothing")
        return self.problems

    def check_text(self, path, text, suffix):
        lines = text.splitlines()
        script = text.startswith("#!")
        limit = LINES_MAX.get(suffix, 500 if script else None)
        if limit is not None and len(lines) > limit:
            self.add("file-length", path, len(lines), f"{len(lines)} lines, the limit is {limit}")
        narrow = suffix in COLUMN_SUFFIXES or script or path.endswith("CMakeLists.txt")
        for number, line in enumerate(lines, 1):
            if narrow and len(line) > COLUMNS_MAX:
                self.add("columns", path, number, f"{len(line)} columns, the limit is 100")
            if line != line.rstrip():
                self.add("blank-at-end", path, number, "trailing blanks")
            if "\t" in line and suffix in COLUMN_SUFFIXES:
                self.add("tab", path, number, "indent with spaces")
        if text and not text.endswith("\n"):
            self.add("last-newline", path, len(lines), "the last line has no newline")

    def check_leftovers(self, path, text):
        if path.endswith(".md"):
            text = re.sub(r"`[^`\n]*`", "``", text)  # a marker that is quoted is talked about
        for number, line in enumerate(text.splitlines(), 1):
            if LEFTOVER.search(line):
                self.add("leftover", path, number, f"leftover marker: {line.strip()}")
            if MACHINE_PATH.search(line):
                self.add("machine-path", path, number, f"path of one machine: {line.strip()}")

    def check_cxx(self, path, text):
        if not NAME_PATTERN.fullmatch(pathlib.Path(path).name.replace("-inl.h", "_inl.h")):
            self.add("file-name", path, 1, "files are named in snake_case")
        if path.endswith((".h", ".hpp")):
            self.check_header(path, text)
        else:
            self.check_own_header(path, text)
        for number, line in enumerate(blank(text).splitlines(), 1):
            for rule, pattern, why, homes in BANNED:
                if path.startswith(tuple(homes)):
                    continue
                if re.search(pattern, line):
                    self.add(rule, path, number, f"{line.strip()}: {why}")
        for function in functions(text):
            if function.lines > FUNCTION_LINES_MAX:
                self.add("function-length", path, function.first_line,
                         f"{function.name} has {function.lines} lines, the limit is "
                         f"{FUNCTION_LINES_MAX}")
            of_c_abi = function.name.startswith("luwu_")
            if function.parameters > PARAMETERS_MAX and not of_c_abi:
                self.add("parameters", path, function.first_line,
                         f"{function.name} has {function.parameters} parameters, the limit is "
                         f"{PARAMETERS_MAX}; pass a struct")

    def check_header(self, path, text):
        if not text.lstrip().startswith(("//", "/*")):
            self.add("header-comment", path, 1, "a header begins with a comment: what it is for, "
                     "who calls it, on which thread, what fails how")
        guarded = "#pragma once" in text or re.search(r"#ifndef \w+_H(PP)?_?\b", text)
        if not guarded and "HWY_TARGET_TOGGLE" not in text:
            self.add("header-guard", path, 1, "write #pragma once")

    def check_own_header(self, path, text):
        own = str(pathlib.PurePosixPath(path).with_suffix(".h"))
        if not (self.tree.root / own).is_file():
            return
        first = next((include for _, include in includes(text)), "")
        if first not in (f'"{own}"', f'"{own.removeprefix("client/include/")}"'):
            self.add("own-header-first", path, 1, f'include "{own}" first: that proves it whole')

    def check_python(self, path, text):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                self.add("function-length", path, node.lineno,
                         f"{node.name} has {lines} lines, the limit is {FUNCTION_LINES_MAX}")

    def check_dead_files(self):
        """Each source is named in a CMake file beside or above it; each header is included."""
        lists = [p for p in self.tree.paths()
                 if p.endswith("CMakeLists.txt") or pathlib.Path(p).suffix in CMAKE_SUFFIXES]
        named = set()
        for path in lists:
            folder = pathlib.PurePosixPath(path).parent
            text = re.sub(r"#[^\n]*", "", self.tree.text(path))
            text = text.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            for token in re.findall(r"[\w./{}$+-]+", text):
                if token.startswith("${PROJECT_SOURCE_DIR}/"):
                    named.add(token.removeprefix("${PROJECT_SOURCE_DIR}/"))
                else:
                    named.add((folder / token).as_posix())
        included = set()
        sources = self.tree.paths(CXX_SUFFIXES)
        for path in sources:
            included.update(include[1:-1] for _, include in includes(self.tree.text(path)))
        for path in sources:
            if path.endswith((".h", ".hpp")):
                short = path.removeprefix("client/include/")
                if path not in included and short not in included:
                    self.add("dead-file", path, 1, "no file includes this header")
            elif path not in named:
                self.add("dead-file", path, 1, "no CMake file names this source")


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[2]
    root = sys.argv[1] if len(sys.argv) > 1 else here
    sys.exit(report(Checker(root).run(), "style"))
