"""The files of the repository, and C++ text with comments and literals blanked out.

Used by all checkers in this folder; standard library only.
"""

import os
import pathlib
import re

SKIPPED_FOLDERS = {"build", "out", ".git", "__pycache__", ".cache", ".pytest_cache"}
CXX_SUFFIXES = {".h", ".hpp", ".cc", ".c"}

_TOKEN = re.compile(
    r"""
      //[^\n]*                                  # line comment
    | /\*.*?\*/                                 # block comment
    | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"      # raw string
    | "(?:\\.|[^"\\\n])*"                       # string
    | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'       # character, not a digit separator
    """,
    re.VERBOSE | re.DOTALL,
)


class Tree:
    """Text files below `root`, by path relative to it ("common/base/bytes.h")."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self._texts = {}

    def paths(self, suffixes=None):
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
            for name in sorted(names):
                path = pathlib.Path(folder, name)
                if suffixes is not None and path.suffix not in suffixes:
                    continue
                if path.is_symlink():
                    continue
                found.append(path.relative_to(self.root).as_posix())
        return found

    def text(self, path):
        """The file's text, or None for a binary file."""
        if path not in self._texts:
            data = (self.root / path).read_bytes()
            try:
                self._texts[path] = data.decode("utf-8") if b"\0" not in data else None
            except UnicodeDecodeError:
                self._texts[path] = None
        return self._texts[path]


def blank(text):
    """`text` with comments removed and literals emptied; line numbers stay."""

    def replace(match):
        token = match.group(0)
        if token.startswith("/"):
            return " " + "\n" * token.count("\n")
        quote = token[-1]
        return quote + "\n" * token.count("\n") + quote

    return _TOKEN.sub(replace, text)


def includes(text):
    """(line, "<a/b.h>" or '"a/b.h"') of every include directive."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"][^>"]+[>"])', line)
        if match:
            found.append((number, match.group(1)))
    return found


def report(problems, what):
    """Prints the problems and returns the exit status."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)" if problems else f"{what}: clean")
    return 1 if problems else 0
