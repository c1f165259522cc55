"""Manual pages and completions, which are made from what the programs say of themselves."""

import gzip
import re
import subprocess

import pytest
from programs import LUWUCTL, LUWUD, SOURCE

COMMANDS = [
    (LUWUD, []), (LUWUCTL, []), (LUWUCTL, ["status"]), (LUWUCTL, ["delete"]),
    (LUWUCTL, ["checkpoint"]), (LUWUCTL, ["checkpoint", "create"]), (LUWUCTL, ["export"]),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manual")
    for script in ("manual-pages", "bash-completion"):
        subprocess.run([SOURCE / "scripts" / script, LUWUD.parent, folder], check=True, timeout=60)
    return folder


def said(program, words):
    return subprocess.run(
        [program, *words, "--help"], capture_output=True, text=True, check=True).stdout


def names(text):
    """Every option that a line of --help begins with."""
    heads = re.findall(r"^  ((?:-\w,)?--[a-z-]+|-\w)\b", text, re.M)
    return {name for head in heads for name in head.split(",")}


def page(made, name):
    return gzip.decompress((made / f"{name}.gz").read_bytes()).decode()


@pytest.mark.parametrize("program, words", COMMANDS)
def test_every_option_is_in_the_page(made, program, words):
    text = page(made, "luwud.8" if program == LUWUD else "luwuctl.1").replace("\\-", "-")
    if words:
        title = " ".join(words)
        if f".SS {title}\n" not in text:  # a command of commands: they have sections
            assert f".SS {title} " in text
            return
        text = text.split(f".SS {title}\n")[1].split(".SS ")[0]
    missing = {name for name in names(said(program, words)) if f"\\fB{name}\\fR" not in text}
    assert missing <= {"-h", "--help"}, missing


def test_the_page_of_the_configuration_has_every_key(made):
    text = page(made, "luwud.toml.5").replace("\\-", "-")
    keys = re.findall(r"^\| `([a-z_]+)` \|",
                      (SOURCE / "docs" / "reference" / "CONFIG.md").read_text(), re.M)
    assert len(keys) > 20
    assert [key for key in keys if f"\\fB{key}\\fR " not in text] == []


def test_the_same_programs_give_the_same_pages(made, tmp_path):
    subprocess.run(
        [SOURCE / "scripts" / "manual-pages", LUWUD.parent, tmp_path], check=True, timeout=60)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (made / path.name).read_bytes()


def complete(made, program, *words):
    """What bash offers for the last of the words."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        f'_{program} 2> /dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"')
    done = subprocess.run(
        ["bash", "-c", script, "bash", made / f"{program}.bash", program, *words],
        capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("program, words", COMMANDS)
def test_every_option_is_offered(made, program, words):
    own, whole = names(said(program, words)), names(said(program, []))
    assert complete(made, program.name, *words, "-") == own | whole


@pytest.mark.parametrize(
    "words, offered",
    [
        (["sta"], {"status"}),
        (["checkpoint", ""], {"create", "list", "delete", "restore"}),
        (["checkpoint", "re"], {"restore"}),
        (["-o", ""], {"table", "json"}),
        (["status", "--output", "j"], {"json"}),
        (["--output", "="], {"table", "json"}),
        (["--output", "=", "t"], {"table"}),
        (["export", "--dtype", ""], {"fp32", "bf16", "fp16"}),
        (["-e", "status", "heal"], {"health"}),  # status is an address here
        (["-w", "sta"], {"status"}),  # the seconds may be left out
        (["--timeout-ms", ""], set()),
        (["delete", ""], set()),
        (["delete", "status", "--fo"], {"--force"}),  # a job of that name
    ],
)
def test_words_are_completed(made, words, offered):
    assert complete(made, "luwuctl", *words) == offered


def test_daemon_choices_are_completed(made):
    assert complete(made, "luwud", "--log-level", "w") == {"warning"}
