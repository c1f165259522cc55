"""Finds function definitions in C++ text: where each begins and ends, and its parameters.

A heuristic, not a parser. A brace opens a function body when, outside any other function, the text
before it (back to the last ';' or brace) has a parameter list and is not a type, a namespace or an
initializer.
"""

import re
from dataclasses import dataclass

from source_tree import blank

_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b|^\s*extern\s*\"\"\s*$")
_PARAMETERS = re.compile(r"(operator\s*\(\s*\)|operator\s*[^\s\w(]+|[\w~]+)\s*\(")
_NOT_NAMES = {"decltype", "alignas", "noexcept", "requires", "__attribute__", "if", "for", "while"}


@dataclass
class Function:
    name: str
    first_line: int
    last_line: int
    parameters: int

    @property
    def lines(self):
        return self.last_line - self.first_line + 1


def without_directives(text):
    """Preprocessor lines emptied, continued ones too."""
    out = []
    continued = False
    for line in text.split("\n"):
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.endswith("\\")
        out.append("" if directive else line)
    return "\n".join(out)


def split_parameters(text, start):
    """Number of parameters in the list that opens at text[start] == "("."""
    depth = 0
    angle = 0
    commas = 0
    anything = False
    for character in text[start:]:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                break
        elif character == "<":
            angle += 1
        elif character == ">":
            angle = max(0, angle - 1)
        elif character == "," and depth == 1 and angle == 0:
            commas += 1
        if depth >= 1 and not character.isspace() and not (depth == 1 and character == "("):
            anything = True
    return commas + 1 if anything else 0


def function_of(head):
    """(name, parameters) when `head`, the text before a brace, begins a function; else None."""
    if _SCOPE.search(head.split("(")[0]) or re.search(r"=\s*$|\breturn\b", head):
        return None
    for match in _PARAMETERS.finditer(head):
        name = match.group(1)
        if name in _NOT_NAMES or "=" in head[: match.start()].replace("operator=", ""):
            continue
        if name.startswith("LUWU_") or name.startswith("HWY_"):
            continue
        return name, split_parameters(head, match.end() - 1)
    return None


def functions(text):
    """All function definitions of a C++ file, in order."""
    text = without_directives(blank(text))
    found = []
    stack = []  # for each open brace its kind, and the parentheses that were open around it
    head_start = 0
    depth = 0  # of parentheses: braces inside them are arguments
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == ";" and depth == 0:
            head_start = position + 1
        elif character == "{":
            head = text[head_start:position]
            inside = any(kind != "scope" for kind, _ in stack)
            free = not inside and depth == 0
            # `name{`; before a body there is a blank.
            initializer = re.search(r"[\w>]$", head) is not None
            start = function_of(head) if free and not initializer else None
            if start is not None:
                indent = len(head) - len(head.lstrip())
                line = text.count("\n", 0, head_start + indent) + 1
                stack.append((Function(start[0], line, 0, start[1]), depth))
            elif free and _SCOPE.search(head):
                stack.append(("scope", depth))
            else:
                stack.append(("initializer" if free and initializer else "other", depth))
            depth = 0
            if stack[-1][0] != "initializer":
                head_start = position + 1
        elif character == "}" and stack:
            kind, depth = stack.pop()
            if isinstance(kind, Function):
                kind.last_line = text.count("\n", 0, position) + 1
                found.append(kind)
            if kind != "initializer":
                head_start = position + 1
    return found
