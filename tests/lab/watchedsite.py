# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the Prometheus of a site, and wait for its answers and its alerts."""

import json
import math
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

import yaml
from labcommand import CHECKOUT
from sitecommand import Site

FILES = CHECKOUT / "roles" / "monitoring" / "files"
RULES = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"


@dataclass
class WatchedSite(Site):
    """A site with a Prometheus in namespace monitoring; ``prometheus`` names its workload for kubectl."""

    prometheus: str = "deployment/prometheus"

    def read(self, workload: str, url: str) -> Any:
        """Return what a part of the stack answers to its own pod; nothing outside may ask it."""
        where = ("--namespace=monitoring", "exec", workload, "--", "python3", "-c", READ)
        return json.loads(self.kubectl(*where, url))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of a query."""
        asked = urllib.parse.urlencode({"query": expression})
        answer = self.read(self.prometheus, f"http://127.0.0.1:9090/api/v1/query?{asked}")
        return list(answer["data"]["result"])

    def until(self, expression: str, patience: float, there: bool = True) -> list[dict[str, Any]]:
        """Wait until a query has a result that is a number, or until it has none; return it."""
        started = time.monotonic()
        while time.monotonic() - started < patience:
            found = [one for one in self.query(expression) if not math.isnan(float(one["value"][1]))]
            if bool(found) is there:
                print(f"after {time.monotonic() - started:.0f} s: {expression}: {[one['value'][1] for one in found]}")
                return found
            time.sleep(3)
        firing = [one["metric"] for one in self.query("ALERTS")]
        raise AssertionError(f"{expression} after {patience} s; alerts: {firing}; up: {self.query('up')}")

    def fired(self, alert: str, patience: float) -> list[dict[str, str]]:
        """Wait until an alert fires; return the labels of the alerts that Alertmanager has by then."""
        self.until(f'ALERTS{{alertname="{alert}", alertstate="firing"}}', patience)
        started = time.monotonic()
        while time.monotonic() - started < 60:
            alerts = self.read("deployment/alertmanager", "http://127.0.0.1:9093/api/v2/alerts")
            if found := [one["labels"] for one in alerts if one["labels"]["alertname"] == alert]:
                return found
            time.sleep(3)
        raise AssertionError(f"Alertmanager has no {alert}: {alerts}")
