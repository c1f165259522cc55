"""Pages made from the program; alerts, rules, runbooks and dashboard against each other."""

import json
import re
import subprocess

import pytest
from programs import SOURCE, luwud

PROMETHEUS = SOURCE / "deploy" / "prometheus"
RUNBOOKS = "docs/operating/runbooks.md"
METRIC = re.compile(r"\bluwu_[a-z0-9_]+")
RECORDED = re.compile(r"\b(?:instance|job_name):luwu_[a-z0-9_:]+")


def text(path):
    return (SOURCE / path).read_text(encoding="utf-8")


def expressions():
    """{where: PromQL} of all rules, alerts and panels."""
    found = {}
    for path in PROMETHEUS.glob("luwu.*.yml"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"\s+expr: (.+)", line):
                found[f"{path.name}:{number}"] = match[1]
    for panel in json.loads(text("deploy/grafana/luwu.json"))["panels"]:
        for target in panel.get("targets", []):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    return found


def test_metrics_page_is_what_luwud_lists():
    listed = luwud("--list-metrics")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout == text("docs/reference/METRICS.md"), (
        "luwud --list-metrics > docs/reference/METRICS.md"
    )


def test_configuration_page_is_what_the_sample_says():
    made = subprocess.run(
        [SOURCE / "scripts" / "config-reference"], capture_output=True, text=True, check=True
    ).stdout
    assert made == text("docs/reference/CONFIG.md"), (
        "scripts/config-reference > docs/reference/CONFIG.md"
    )


def test_the_configuration_page_has_every_key_and_its_default(tmp_path):
    """Against what --check-config prints of the shortest file."""
    config = tmp_path / "luwud.toml"
    config.write_text(
        '[node]\nname = "a"\n[memory]\nbudget = "1GiB"\n'
        '[[nodes]]\nname = "a"\ncontrol = "127.0.0.1:1"\ndata = "127.0.0.1:2"\nshm = "/tmp/a"\n'
    )
    shown = luwud("--config", config, "--check-config")
    assert shown.returncode == 0, shown.stderr
    page = text("docs/reference/CONFIG.md")
    section = header = None
    seen = 0
    for line in shown.stdout.splitlines():
        if line.startswith("["):
            header = line
            section = page.split(f"\n## {line}\n")[1].split("\n## ")[0]
        elif key := re.match(r"([a-z_]+) = ([^#]+)", line):
            example = header in ("[node]", "[memory]", "[[nodes]]")
            value = "`" if example else f"`{key[2].strip()}` |"
            assert f"| `{key[1]}` | {value}" in section, line
            seen += 1
    assert seen > 20


def test_every_metric_that_is_used_exists():
    documented = set(re.findall(r"^\| `(luwu_\w+)` \|", text("docs/reference/METRICS.md"), re.M))
    recorded = set(re.findall(r"- record: (\S+)", text("deploy/prometheus/luwu.rules.yml")))
    assert documented and recorded
    for where, expr in expressions().items():
        used = set(RECORDED.findall(expr))
        assert used <= recorded, where
        plain = {
            re.sub(r"_(bucket|sum|count)$", "", name)
            for name in METRIC.findall(RECORDED.sub("", expr))
        }
        assert plain <= documented, where


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    alerts = text("deploy/prometheus/luwu.alerts.yml")
    names = re.findall(r"- alert: (\w+)", alerts)
    assert names == re.findall(r"^## (\w+)$", text(RUNBOOKS), re.M)
    urls = re.findall(r"runbook_url: (\S+)", alerts)
    assert urls == [f"{RUNBOOKS}#{name.lower()}" for name in names]


def test_every_alert_is_tested():
    tests = text("deploy/prometheus/tests/alerts.test.yml")
    for name in re.findall(r"- alert: (\w+)", text("deploy/prometheus/luwu.alerts.yml")):
        blocks = [block for block in tests.split("- alertname: ") if block.startswith(name + "\n")]
        silent = ["exp_alerts: []" in block for block in blocks]
        assert sorted(silent) == [False, True], name


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", PROMETHEUS / "luwu.rules.yml", PROMETHEUS / "luwu.alerts.yml"],
        ["check", "config", PROMETHEUS / "prometheus.yml"],
        ["test", "rules", *sorted((PROMETHEUS / "tests").glob("*.yml"))],
    ],
    ids=["rules", "config", "tests"],
)
def test_promtool_is_content(arguments):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_check_has_a_heading_in_the_pages():
    """Of those that luwud counts, so that nobody meets a name that no page explains."""
    pages = text("docs/operating/README.md") + text("docs/operating/monitoring.md")
    header = text("server/service/status_snapshot.h")
    names = re.findall(r'\{"([A-Z_]+)", Severity::', header)
    assert len(names) >= 10
    assert [name for name in names if f"`{name}`" not in pages] == []
