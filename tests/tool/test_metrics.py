# SPDX-License-Identifier: BSD-2-Clause
"""The figures for Prometheus. Its own linter accepts their names and units, a real Prometheus
scrapes them, and the dashboard asks for metrics that exist."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest
import unittest.mock
import urllib.parse
import urllib.request

from fake import ALONE, MIB, UUID, body, pool, put_text, text_of, tool, wait_for
from test_page import Case

from gpucache import metrics

try:
    import prometheus_client  # noqa: F401
except ImportError:
    print("prometheus_client is not installed: skipped")
    sys.exit(77)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as page:
        return page.headers["Content-Type"], page.read().decode()


class Text(Case):
    def sample(self, out, name):
        return re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", out, re.MULTILINE)

    def test_the_figures_of_a_process(self):
        self.page(body(pool(num_ooms=2, flush_ns=1_500_000_000, async_reserved_bytes=96 * MIB,
                            async_idle_bytes=64 * MIB)))
        out = tool("metrics").out
        labels, value = self.sample(out, "gpucache_idle_bytes")[0]
        self.assertEqual(float(value), 156 * MIB)
        self.assertEqual(set(re.findall(r"(\w+)=", labels)),
                         {"pid", "process", "user", "gpu", "gpu_uuid"})
        self.assertIn(f'pid="{os.getpid()}"', labels)
        self.assertIn(f'gpu_uuid="{UUID}"', labels)
        for name, value in (("gpucache_flush_seconds_total", 1.5), ("gpucache_ooms_total", 2),
                            ("gpucache_signal_requests_total", 3),
                            ("gpucache_async_reserved_bytes", 96 * MIB),
                            ("gpucache_async_idle_bytes", 64 * MIB),
                            ("gpucache_gpu_total_bytes", 80 << 30),
                            ("gpucache_unreadable_pages", 0)):
            self.assertEqual([float(v) for _, v in self.sample(out, name)], [value], name)

    def test_what_is_parked_is_not_on_the_gpu(self):
        """Device memory is what ps shows of it, beside what the driver's own pools have."""
        for away, reserved, idle in ((0, 188, 156), (128, 60, 60), (188, 0, 0), (200, 0, 0)):
            page = self.page(body(pool(away_bytes=away * MIB, async_reserved_bytes=96 * MIB,
                                       async_idle_bytes=64 * MIB)))
            out = tool("metrics").out
            for name, value in (("reserved", reserved), ("idle", idle), ("away", away)):
                self.assertEqual([float(v) for _, v in self.sample(out, f"gpucache_{name}_bytes")],
                                 [value * MIB], (away, name))
            cells = dict(zip(*(line.split() for line in tool("ps", COLUMNS="200")
                               .out.replace("MiB", "").splitlines()[-2:])))
            shown = tool("ps", "--json").json["processes"][0]
            self.assertEqual(shown["gpus"][0]["away_bytes"], away * MIB)
            self.assertEqual([cells["RESERVED"], cells["IDLE"]],
                             [str(reserved + 96), str(idle + 64)], cells)
            page.close()

    def test_whether_a_process_is_parked(self):
        """As ps says it: of these states one is 1."""
        page = self.page()
        for park, away, state in (({}, 0, "running"), ({"state": "parked"}, 0, "running"),
                                  ({"state": "parked"}, 9, "parked"),
                                  ({"state": "parked", "whole": True}, 0, "parked"),
                                  ({"state": "waking"}, 9, "waking"),
                                  ({"state": "waits", "needs_bytes": 9}, 0, "waiting")):
            page.publish(body(pool(away_bytes=away * MIB), park=park))
            found = self.sample(tool("metrics").out, "gpucache_process_state")
            self.assertEqual({re.search(r'state="(\w+)"', labels)[1]: float(value)
                              for labels, value in found},
                             {**dict.fromkeys(("running", "parked", "waking", "waiting"), 0.0),
                              state: 1.0})

    def test_every_metric_is_there_and_has_a_help(self):
        self.page()
        out = tool("metrics").out
        for name in metrics.NAMES:
            self.assertTrue(self.sample(out, name), name)
            self.assertIn(f"# HELP {name} ", out)
        self.assertEqual(len(set(metrics.NAMES)), len(metrics.NAMES))

    def test_a_page_that_cannot_be_used_is_counted(self):
        page = self.page()
        os.truncate(page.path, 100)
        self.assertEqual(self.sample(tool("metrics").out, "gpucache_unreadable_pages")[0][1], "1.0")
        for number in range(5):  # one sentence of ps, and six files
            put_text(f"{self.folder}/1-{number}-3.page")
        self.assertEqual(self.sample(tool("metrics").out, "gpucache_unreadable_pages")[0][1], "6.0")

    def test_processes_of_two_hidden_namespaces_have_their_own_labels(self):
        for namespace in (11111, 22222):
            self.page(pid=7, namespace=namespace)
        out = tool("metrics").out
        labels = [found for found, _ in self.sample(out, "gpucache_idle_bytes")]
        self.assertEqual([re.search(r'pid="(.*?)"', each)[1] for each in labels],
                         ["11111-7", "22222-7"])
        for line in out.splitlines():
            self.assertEqual(out.splitlines().count(line), 1, line)

    def test_a_name_with_everything_in_it_is_one_label(self):
        self.page(body(pool(name='a"b'), program='a"b\\c\nd\x1b[31m{}\u202e', command="x"), pid=7,
                  namespace=11111)
        out = tool("metrics").out
        labels, _ = self.sample(out, "gpucache_idle_bytes")[0]
        self.assertIn(r'process="a\"b\\c?d?[31m{}?",', labels)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_has_nothing_to_say(self):
        self.page()

        def check(text):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                  capture_output=True, timeout=60)
            return done.returncode, done.stdout + done.stderr
        out = tool("metrics").out
        self.assertEqual(check(out), (0, ""))
        self.assertNotEqual(check(out.replace("gpucache_ooms_total", "gpucache_ooms"))[0], 0)

    def test_the_textfile_is_whole_or_not_there(self):
        self.page()
        target = os.path.join(self.folder, "gpucache.prom")
        self.assertEqual(tool("metrics", "--textfile", target).status, 0)
        self.assertIn("gpucache_idle_bytes{", text_of(target))
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith("gpucache.prom")],
                         ["gpucache.prom"])
        self.says(tool("metrics", "--textfile", "/nonexistent/x"), 1,
                  "/nonexistent/x: no such file or directory")

    def test_nothing_is_served_that_every_scrape_would_be_refused(self):
        with unittest.mock.patch("os.geteuid", lambda: 12345), \
                unittest.mock.patch("prometheus_client.start_http_server") as started:
            for words in (("--listen", "127.0.0.1:0"), ("--textfile", self.folder + "/f"), ()):
                done = tool("metrics", "--all-users", *words)
                self.says(done, 1, "only root sees the processes of all users: leave --all-users "
                          "out, or use sudo")
            self.assertFalse(started.called)
        self.assertEqual(os.listdir(self.folder), [])

    def test_addresses_without_sense(self):
        for words in ("nonsense", "127.0.0.1:", "127.0.0.1:99999", "x:y"):
            done = tool("metrics", "--listen", words)
            self.assertEqual(done.status, 2)
            self.assertIn("is no address", done.err)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.says(tool("metrics", "--listen", address), 1,
                      f"cannot listen on {address}: address already in use")


class Served(Case):
    @contextlib.contextmanager
    def server(self):
        with subprocess.Popen([*ALONE, "metrics", "--listen", "127.0.0.1:0"],
                              stdout=subprocess.PIPE, text=True) as server:
            try:
                said = server.stdout.readline()
                yield re.fullmatch(r"serving (http://127.0.0.1:[0-9]+/metrics)\n", said)[1]
            finally:
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(60), 0)

    def test_each_scrape_reads_the_pages_again(self):
        page = self.page()
        with self.server() as url:
            kind, text = get(url, Accept="application/openmetrics-text; version=1.0.0")
            self.assertIn("openmetrics", kind)
            self.assertTrue(text.endswith("# EOF\n"))
            page.publish(body(pool(pending_bytes=77)))
            self.assertRegex(get(url)[1], rf'gpucache_pending_bytes{{.*pid="{page.pid}".*}} 77.0')

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_a_real_prometheus_scrapes_it(self):
        self.page()
        port, config = free_port(), os.path.join(self.folder, "prometheus.yml")
        with self.server() as url:
            put_text(config, "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: gpucache, "
                             f"static_configs: [{{targets: ['{url.split('/')[2]}']}}]}}]\n")
            with subprocess.Popen(["prometheus", f"--config.file={config}",
                                   f"--storage.tsdb.path={self.folder}/tsdb",
                                   f"--web.listen-address=127.0.0.1:{port}"],
                                  stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as prometheus:
                def answer(query):
                    query = urllib.parse.quote(query)
                    try:
                        said = get(f"http://127.0.0.1:{port}/api/v1/query?query={query}")[1]
                        return json.loads(said)["data"]["result"]
                    except OSError:
                        return []

                def found(query="gpucache_idle_bytes"):
                    return [r for r in answer(query) if r["metric"].get("pid") == str(os.getpid())]
                try:
                    result = wait_for(found, 60)
                    self.assertEqual(result[0]["value"][1], str(156 * MIB))
                    self.assertEqual(result[0]["metric"]["gpu_uuid"], UUID)
                    self.assertTrue(found("gpucache_allocs_total"))
                    for panel in json.loads(text_of(sys.argv[2]))["panels"]:
                        for expr in (target["expr"] for target in panel["targets"]):
                            if "rate(" in expr:
                                continue  # there is no second scrape yet
                            told, other = (answer(expr.replace("$gpu_uuid", its))
                                           for its in (UUID, "GPU-another"))
                            self.assertTrue(told, expr)
                            self.assertEqual(other, [], expr)
                finally:
                    prometheus.terminate()


class Dashboard(unittest.TestCase):
    def test_it_asks_for_metrics_that_there_are(self):
        dashboard = json.loads(text_of(sys.argv[2]))
        asked = set()
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                asked |= set(re.findall(r"\bgpucache_\w+", target["expr"]))
        for variable in dashboard["templating"]["list"]:
            asked |= set(re.findall(r"\bgpucache_\w+", json.dumps(variable["query"])))
        self.assertGreater(len(asked), 10)
        self.assertEqual(asked - set(metrics.NAMES), set())
        self.assertLessEqual({"gpucache_away_bytes", "gpucache_process_state"}, asked)
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}),
                         len(dashboard["panels"]))
