"""Dashboard, rules and alerts in a real Prometheus that scrapes real daemons under load: no panel
without data, no rule with an error, no alert while all is well, and one when a daemon is gone."""

import json
import math
import re
import threading
import time
import urllib.parse
import urllib.request

import pytest
from cluster import free_ports, spawn
from durable_training import Oracle, Trainer, job_of
from programs import SOURCE

PATIENCE_S = 120.0
PROMETHEUS = SOURCE / "deploy" / "prometheus"
CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files: [{rules}, {alerts}]
scrape_configs:
  - job_name: luwu
    static_configs:
      - targets: {targets}
"""
VARIABLES = {"$job_name": "load", "$instance": "127.0.0.1:.+", "$__rate_interval": "20s"}


class Prometheus:
    """One of our own, with a data directory of its own, on a loopback port."""

    def __init__(self, folder, targets):
        config = folder / "prometheus.yml"
        config.write_text(
            CONFIG.format(
                rules=PROMETHEUS / "luwu.rules.yml",
                alerts=PROMETHEUS / "luwu.alerts.yml",
                targets=json.dumps(targets),
            )
        )
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._log_path = folder / "prometheus.log"
        with open(self._log_path, "wb") as log:
            self._process = spawn(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.loads(answer.read())["data"]

    def values(self, expr):
        """What an instant query gives, NaN left out."""
        samples = self.ask("query", query=expr)["result"]
        values = [float(sample["value"][1]) for sample in samples]
        return [value for value in values if not math.isnan(value)]

    def rules(self):
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self):
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["state"] for alert in alerts}

    def log(self):
        return self._log_path.read_text(errors="replace")[-3000:]

    def close(self):
        self._process.kill()
        self._process.wait()


class Load:
    """A training that goes on until it is stopped."""

    def __init__(self, endpoints):
        self._trainer = Trainer(endpoints, job_of("load"), Oracle())
        self._stop = threading.Event()
        self.error = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.wait(0.05):
                self._trainer.train_step()
        except BaseException as error:  # for the thread that waits
            self.error = error

    def close(self):
        """Idempotent."""
        self._stop.set()
        if self._trainer is not None:
            self._thread.join()
            self._trainer.close()
            self._trainer = None


@pytest.fixture
def world(start_cluster, tmp_path):
    """(cluster, a Prometheus that scrapes it, the load)."""
    cluster = start_cluster(nodes=2, storage=True, metrics=True, shm=[True, False])
    load = Load(cluster.endpoints)
    prometheus = Prometheus(tmp_path, [cluster.metrics_address(i) for i in range(2)])
    yield cluster, prometheus, load
    prometheus.close()
    load.close()


def panels():
    """{"title refId": expr} with the template variables replaced."""
    dashboard = json.loads((SOURCE / "deploy" / "grafana" / "luwu.json").read_text())
    found = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for variable, value in VARIABLES.items():
                expr = expr.replace(variable, value)
            assert "$" not in expr, expr
            found[f"{panel['title']} {target['refId']}"] = expr
    return found


def wait_for(found, prometheus, load=None):
    """Until `found()` is true; what it returned last."""
    end = time.monotonic() + PATIENCE_S
    while True:
        assert load is None or load.error is None, load.error
        try:
            got = found()
        except OSError as error:  # Prometheus is starting
            got = None
            last = error
        else:
            last = "not found"
        if got or time.monotonic() > end:
            assert got is not None, f"{last}\n{prometheus.log()}"
            return got
        time.sleep(0.5)


def test_no_panel_is_without_data_and_alerts_tell_good_from_bad(world):
    cluster, prometheus, load = world
    queries = panels()
    assert len(queries) > 40
    rules_text = (PROMETHEUS / "luwu.rules.yml").read_text()
    queries.update({name: name for name in re.findall(r"- record: (\S+)", rules_text)})
    missing = dict(queries)

    def all_found():
        for title, expr in list(missing.items()):
            if prometheus.values(expr):
                del missing[title]
        return not missing

    wait_for(all_found, prometheus, load)
    assert missing == {}

    rules = wait_for(
        lambda: all(rule["health"] == "ok" for rule in prometheus.rules()) and prometheus.rules(),
        prometheus,
        load,
    )
    assert rules, prometheus.rules()
    assert {rule["type"] for rule in rules} == {"recording", "alerting"}
    firing = [name for name, state in prometheus.alerts().items() if state == "firing"]
    assert firing == []
    assert prometheus.values('sum(up{job="luwu"})') == [2]

    load.close()
    cluster.kill(1)
    assert wait_for(lambda: "LuwuDaemonDown" in prometheus.alerts(), prometheus)
