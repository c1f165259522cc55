"""What a program says with --help, in parts: for its manual page and its completion.

The programs print CLI11's layout: sections with entries in two columns, the first of which ends
where "Print this help message" begins. An entry that is wider has its description on the next line.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SECTION = re.compile(r"([A-Z][A-Za-z ]*):")
CONSTRAINTS = ("Excludes:", "Needs:", "REQUIRED")


@dataclass
class Entry:
    """One option, positional or subcommand."""

    names: list[str]
    value: str  # "FORMAT:{table,json}=table"; empty for a flag
    constraints: str  # "Needs: --listen"
    text: str

    @property
    def takes_value(self) -> bool:
        """Of an option: the next word is its value. "[SECONDS]" may be left out."""
        return bool(self.value) and not self.value.startswith("[")

    @property
    def choices(self) -> list[str]:
        found = re.search(r"\{([^}]*)\}", self.value)
        return found[1].split(",") if found else []


@dataclass
class Help:
    """One program, or one command of it."""

    words: list[str]  # ["luwuctl", "checkpoint", "create"]
    text: str
    usage: str
    positionals: list[Entry] = field(default_factory=list)
    options: list[Entry] = field(default_factory=list)
    groups: list[tuple[str, list[Entry]]] = field(default_factory=list)  # of options, named
    commands: list["Help"] = field(default_factory=list)
    footer: list[str] = field(default_factory=list)  # paragraphs

    def everything(self) -> list["Help"]:
        return [self, *(inner for command in self.commands for inner in command.everything())]

    def all_options(self) -> list[Entry]:
        return self.options + [entry for _, entries in self.groups for entry in entries]


def read(program: Path) -> Help:
    """Asks the program, and every command of it."""
    return _read(program, [program.name])


def version(program: Path) -> str:
    return _say(program, ["--version"]).split()[-1]


def _say(program: Path, arguments: list[str]) -> str:
    return subprocess.run(
        [str(program), *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def _read(program: Path, words: list[str]) -> Help:
    lines = _say(program, [*words[1:], "--help"]).splitlines()
    usage = next(line for line in lines if line.startswith("Usage: "))
    width = next(line for line in lines if "Print this help message" in line).index("Print this")
    about = " ".join(lines[: lines.index(usage)])
    found = Help(words, about.strip(), usage.removeprefix("Usage: "))
    sections, footer = _sections(lines[lines.index(usage) + 1 :])
    found.footer = footer
    for title, body in sections:
        entries = _entries(body, width)
        if title == "Positionals":
            found.positionals = entries
        elif title == "Options":
            found.options = entries
        elif title == "Subcommands":
            found.commands = [_read(program, [*words, entry.names[0]]) for entry in entries]
        else:
            found.groups.append((title, entries))
    return found


def _sections(lines: list[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Sections with their lines, and the paragraphs of the footer."""
    sections: list[tuple[str, list[str]]] = []
    paragraphs: list[list[str]] = []
    for number, line in enumerate(lines):
        title = SECTION.fullmatch(line)
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if title and after.startswith("  "):
            sections.append((title[1], []))
        elif line.startswith("  ") and not paragraphs:
            sections[-1][1].append(line)
        elif line:
            if not paragraphs or not lines[number - 1]:
                paragraphs.append([])
            paragraphs[-1].append(line)
    return sections, [" ".join(paragraph) for paragraph in paragraphs]


def _entries(lines: list[str], width: int) -> list[Entry]:
    found: list[Entry] = []
    for number, line in enumerate(lines):
        if not line[:width].strip():  # the description of a wide entry
            found[-1].text = line.strip()
            continue
        wide = number + 1 < len(lines) and not lines[number + 1][:width].strip()
        head = (line if wide else line[:width]).strip()
        found.append(_entry(head, "" if wide else line[width:].strip()))
    return found


def _entry(head: str, text: str) -> Entry:
    names, _, rest = head.partition(" ")
    cut = min((at for at in map(rest.find, CONSTRAINTS) if at >= 0), default=len(rest))
    return Entry(names.split(","), rest[:cut].strip(), rest[cut:].strip(), text)
