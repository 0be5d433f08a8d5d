"""The product's metrics as exposed by Ray's exporter on this machine, read the way Prometheus scrapes them."""

import re
import threading
import urllib.request
from collections import Counter, defaultdict

LABEL = re.compile(r'(\w+)="([^"]*)"')
OF_NODES = {"ray_node_cpu_utilization", "ray_node_mem_used", "ray_node_mem_total", "ray_node_disk_free"}
OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId", "le"}


def scrape(port):
    """Return {series name: [(labels, value), ...]} of a node, without the labels added by Ray."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = defaultdict(list)
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if brace and not line.startswith("#"):
            labels, _, value = rest.rpartition("} ")
            kept = {
                key: value for key, value in LABEL.findall(labels) if key not in OF_RAY and not key.startswith("otel_")
            }
            found[name].append((kept, float(value)))
    return dict(found)


class Watch(threading.Thread):
    """Scrapes a node once a second until told to stop. `series` holds the newest samples of every series
    seen, and `scrapes` the number of times each series was seen.

    Continuous scraping is necessary because Ray shows a gauge only for a while after it was set, and a
    process's gauges only while the process runs.
    """

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.series, self.scrapes, self._end = port, {}, Counter(), threading.Event()

    def run(self):
        while not self._end.wait(1):
            found = scrape(self.port)
            self.scrapes.update(found.keys())
            self.series |= found

    def stop(self):
        self._end.set()
        self.join()


def check_labels(series, metrics):
    for metric in metrics:
        for name in (f"ray_gristmill_{metric.name}", f"ray_gristmill_{metric.name}_bucket"):
            for labels, _ in series.get(name, ()):
                assert set(labels) == set(metric.tags), name
