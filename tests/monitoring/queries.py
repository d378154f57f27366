"""Do the queries of the dashboard and of the alerts return what they should?

Usage: queries.py TODANA

Starts a master, a replica and Prometheus, which reads the metrics of both each second. Then each
query of the dashboard must return data, and each metric that dashboards for memcached_exporter use.
No alert may be raised while both servers are well, and the right ones must be once the master is
gone. Needs Prometheus in the PATH.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

if len(sys.argv) != 2:
    sys.exit(__doc__)
TODANA = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WAIT_S = 90
# The number of samples that a query needs to compute a rate.
SAMPLES = 4
CHILDREN = []

# The queries of the usual dashboards and alerts for memcached_exporter.
EXPORTER_QUERIES = [
    'sum(rate(memcached_commands_total{command="get", status="hit"}[1m])) / sum(rate(memcached_commands_total{command="get"}[1m]))',
    "sum without (job, instance) (rate(memcached_commands_total[1m]))",
    "sum without (job) (rate(memcached_items_evicted_total[1m]))",
    "sum without (job) (rate(memcached_items_total[1m]))",
    "sum without (job) (memcached_current_bytes)",
    "sum without (job) (memcached_current_items)",
    "sum without (job) (memcached_limit_bytes)",
    "sum without (job) (rate(memcached_connections_total[1m]))",
    "sum without (job) (memcached_max_connections)",
    "sum without (job) (memcached_current_connections)",
    "sum without (job) (rate(memcached_read_bytes_total[1m]))",
    "sum without (job) (rate(memcached_written_bytes_total[1m]))",
    "count by (job, instance, version) (memcached_version)",
    "max by (job, instance) (memcached_uptime_seconds)",
    "min by (job, instance) (memcached_up)",
]
# These panels show lines only for a server in that state.
EMPTY_WHEN_WELL = ["last_checkpoint_timestamp", "todana_database_disk_bytes"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(folder, *options):
    """Starts a server. Returns its process, its address and that of its metrics."""
    command = [TODANA, "serve", "-p", "-1", "--admin-port", "-1", "--data-dir", folder, *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    CHILDREN.append(child)
    admin = None
    for line in child.stdout:
        found = re.search(r"admin page: http://([^/]+)/", line)
        admin = found.group(1) if found else admin
        if line.startswith("listening on "):
            return child, line.split()[2].rstrip(","), admin
    sys.exit("a server has not started")


def load(address, ends):
    """Sends some requests of each kind until the end."""
    host, port = address.rsplit(":", 1)
    requests = b"set a 0 0 1\r\n1\r\nget a\r\nget b\r\nincr a 1\r\ntouch a 100\r\ndelete a\r\nset keep 0 0 1\r\n1\r\n"
    with socket.create_connection((host, int(port))) as connection:
        while not ends.wait(0.05):
            connection.sendall(requests)
            connection.recv(1 << 16)


def query(prometheus, expression):
    """Returns the results of a query."""
    url = f"http://{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return json.load(answer)["data"]["result"]


def wait_until(what, condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {WAIT_S} s")
        time.sleep(0.2)


def start_prometheus(folder, metrics):
    port = free_port()
    targets = json.dumps(metrics)
    with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as file:
        file.write(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs:\n  - job_name: todana\n    static_configs:\n      - targets: {targets}\n"
        )
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]
    CHILDREN.append(subprocess.Popen(command))
    address = f"127.0.0.1:{port}"

    def has_samples():
        try:
            counts = query(address, "count_over_time(todana_build_info[1m])")
        except OSError:
            return False
        return len(counts) == len(metrics) and all(int(one["value"][1]) >= SAMPLES for one in counts)

    wait_until("samples", has_samples)
    return address


def dashboard_queries():
    with open(os.path.join(ROOT, "monitoring/todana-dashboard.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m")
            yield text.replace("$job", ".*").replace("$instance", ".*")


def alert_queries():
    with open(os.path.join(ROOT, "monitoring/todana-alerts.yml"), encoding="utf-8") as file:
        return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.*)\n", file.read()))


def main(folder):
    master, address, master_metrics = start_server(os.path.join(folder, "master"), "--server-id", "1")
    _, _, replica_metrics = start_server(
        os.path.join(folder, "replica"), "--server-id", "2", "--replicate", f"todana://{address}"
    )
    ends = threading.Event()
    threading.Thread(target=load, args=(address, ends), daemon=True).start()
    prometheus = start_prometheus(folder, [master_metrics, replica_metrics])
    wait_until("the replica", lambda: query(prometheus, "todana_replica_connected == 1"))

    shown = [*dashboard_queries(), *EXPORTER_QUERIES]
    without = [text for text in shown if not query(prometheus, text)]
    without = [text for text in without if not any(name in text for name in EMPTY_WHEN_WELL)]
    if without:
        sys.exit("no data:\n" + "\n".join(without))
    alerts = alert_queries()
    raised = [name for name, text in alerts.items() if query(prometheus, text)]
    if raised:
        sys.exit(f"alerts of servers that are well: {raised}")

    ends.set()
    master.terminate()
    master.wait()
    for name in ["TodanaDown", "TodanaReplicaDisconnected"]:
        wait_until(name, lambda: query(prometheus, alerts[name]))
    print(f"{len(shown)} queries and {len(alerts)} alerts")


with tempfile.TemporaryDirectory() as scratch:
    try:
        main(scratch)
    finally:
        for process in CHILDREN:
            process.kill()
            process.wait()
