"""luwud's command line and configuration, by running the program: every error is one clear line on
stderr and its own exit status, and nothing is left behind."""

import os
import re
import socket
import subprocess

import pytest
from cluster import Daemon, free_ports
from programs import LUWUD, SOURCE, TIMEOUT_S, luwud

USAGE, RUNTIME = 2, 1

GOOD = """\
[node]
name = "a"
[memory]
budget = "64MiB"
[[nodes]]
name = "a"
control = "127.0.0.1:{control}"
data = "127.0.0.1:{data}"
shm = "{shm}"
"""


@pytest.fixture
def config(tmp_path):
    """Writes a valid configuration with `replace` done to it and returns its path."""

    def write(*replace, **values):
        control, data = free_ports(2)
        defaults = {"control": control, "data": data, "shm": tmp_path / "a.sock"}
        text = GOOD.format(**{**defaults, **values})
        for old, new in replace:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "luwud.toml"
        path.write_text(text)
        return path

    return write


def refused(done, status, *parts):
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("luwud: ") for line in lines), done.stderr
    for part in parts:
        assert str(part) in done.stderr


def test_version():
    done = luwud("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"luwud \d+\.\d+\.\d+\n", done.stdout)


def test_help_names_every_option():
    done = luwud("--help")
    assert done.returncode == 0
    for option in ("--config", "--listen", "--memory", "--check-config", "--ready-fd"):
        assert option in done.stdout


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ([], ["--config", "--listen"]),
        (["--nope"], ["--nope"]),
        (["extra"], ["extra"]),
        (["--listen", "127.0.0.1:0"], ["--memory"]),
        (["--memory", "1GiB"], ["--listen"]),
        (["--listen", "127.0.0.1:0", "--memory", "lots"], ["--memory", "lots"]),
        (["--listen", "127.0.0.1:0", "--memory", "1KiB"], ["--memory", "16.0 MiB"]),
        (["--listen", "nowhere", "--memory", "1GiB"], ["--listen", "host:port"]),
        (["--listen", "127.0.0.1:0", "--memory", "1GiB", "--config", "x"], ["--config"]),
        (["--config", "/no/such/file"], ["/no/such/file"]),
        (["--config", "/"], ["/"]),
        (["--listen", "127.0.0.1:0", "--memory", "1GiB", "--log-level", "loud"], ["loud"]),
    ],
)
def test_wrong_usage(arguments, parts):
    refused(luwud(*arguments), USAGE, *parts)


@pytest.mark.parametrize(
    "old, new, line, hint",
    [
        ("budget", "bugdet", 4, "did you mean 'budget'"),
        ('"64MiB"', "true", 4, "budget"),
        ('"64MiB"', '"1KiB"', 4, "budget"),
        ('"64MiB"', '"64 cows"', 4, "64 cows"),
        ("[memory]", "[memroy]", 3, "did you mean 'memory'"),
        ('name = "a"\n[memory]', 'name = "b"\n[memory]', 2, "[[nodes]]"),
        ("control = ", "weight = 1001\ncontrol = ", 7, "1000"),
        ('control = "127.0.0.1:', 'control = "127.0.0.1;', 7, "host:port"),
        ("[node]", "[node", 1, ""),
    ],
)
def test_configuration_errors_name_file_line_and_remedy(config, old, new, line, hint):
    path = config((old, new))
    refused(luwud("--config", path), USAGE, f"{path}:{line}:", hint)
    refused(luwud("--config", path, "--check-config"), USAGE, f"{path}:{line}:", hint)


def test_check_config_prints_what_it_reads_back(config, tmp_path):
    first = luwud("--config", config(), "--check-config")
    assert (first.returncode, first.stderr) == (0, "")
    again = tmp_path / "again.toml"
    again.write_text(first.stdout)
    second = luwud("--config", again, "--check-config")
    assert (second.returncode, second.stdout) == (0, first.stdout)


def test_check_config_looks_at_the_certificates(config):
    """It said that all was well, and the daemon did not start."""
    tls = (
        '[tls]\ncertificate = "/nowhere/d.pem"\nkey = "/nowhere/d.pem"\nca = "/nowhere/ca.pem"\n'
        '[[access]]\nidentity = "x.example"\nrole = "operator"\njobs = ["*"]\n'
    )
    path = config(("[memory]", tls + "[memory]"))
    refused(luwud("--config", path, "--check-config"), USAGE, "/nowhere/d.pem")


def test_the_log_level_of_the_command_line_wins(config):
    done = luwud("--config", config(), "--check-config", "--log-level", "error")
    assert 'level = "error"' in done.stdout


def test_the_sample_configuration_is_valid():
    done = luwud("--config", SOURCE / "deploy" / "config" / "luwud.toml", "--check-config")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sample_configuration_runs(tmp_path):
    sample = (SOURCE / "deploy" / "config" / "luwud.toml").read_text()
    ports = dict(zip(("7070", "7071", "7080", "7081"), free_ports(4)))
    for old, new in ports.items():
        assert old in sample
        sample = sample.replace(f":{old}", f":{new}")
    sample = sample.replace("/tmp/luwud-", f"{tmp_path}/").replace("4GiB", "64MiB")
    path = tmp_path / "luwud.toml"
    path.write_text(sample)
    daemon = Daemon([LUWUD, "--config", path], tmp_path)
    ready = daemon.start()
    assert ready["node"] == "node0"
    assert ready["control_port"] == ports["7070"]
    assert ready["data_port"] == ports["7071"]
    assert ready["shm_path"] == f"{tmp_path}/node0.sock"
    assert daemon.stop() == 0


def test_quick_start_needs_no_file(tmp_path):
    shm = tmp_path / "q.sock"
    daemon = Daemon(
        [LUWUD, "--listen", "127.0.0.1:0", "--memory", "64MiB", "--shm", shm], tmp_path
    )
    ready = daemon.start()
    assert ready["pid"] == daemon.pid
    assert ready["node"] == "local"
    assert ready["control_port"] != 0 and ready["data_port"] != 0
    for port in (ready["control_port"], ready["data_port"]):
        socket.create_connection(("127.0.0.1", port), 10).close()
    assert shm.is_socket()
    assert daemon.stop() == 0
    assert not shm.exists()


@pytest.mark.parametrize("plane", ["control", "data"])
def test_a_port_in_use_is_named(config, plane):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = luwud("--config", config(**{plane: port}))
    refused(done, RUNTIME, f"{plane} plane", f"127.0.0.1:{port}", "in use")


def test_an_address_of_another_host_is_named(config):
    done = luwud("--config", config(("127.0.0.1", "192.0.2.1")))
    refused(done, RUNTIME, "192.0.2.1")


def test_a_socket_path_that_cannot_be_made_is_named(config):
    done = luwud("--config", config(shm="/no/such/folder/a.sock"))
    refused(done, RUNTIME, "/no/such/folder/a.sock")


def test_a_ready_descriptor_that_is_not_open_is_refused(config):
    refused(luwud("--config", config(), "--ready-fd", 77, "--log-level", "off"), USAGE, "77")


def test_a_reader_of_the_ready_line_may_be_gone(config):
    """A broken pipe is an error, not a silent death by SIGPIPE."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    command = [LUWUD, "--config", config(), "--log-level", "off", "--ready-fd", str(write_fd)]
    done = subprocess.run(
        command, capture_output=True, text=True, pass_fds=[write_fd], timeout=TIMEOUT_S
    )
    os.close(write_fd)
    refused(done, USAGE, "--ready-fd")
