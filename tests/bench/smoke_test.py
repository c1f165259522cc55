"""Runs luwu-bench at tiny sizes: it must end well, and its JSON must have every field. No time is
judged.

Usage: smoke_test.py LUWU_BENCH
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
TIMEOUT_S = 900  # seconds on a machine of its own, minutes beside other work
TINY = ["--params", "300k", "--layers", "3", "--transfer-mib", "4", "--rounds", "1"]
TINY += ["--compute-ms", "0.1", "--small-fetches", "20", "--update-threads", "1"]

COST = {"gb_per_s", "cpu_s_per_gb", "near_cpu_s_per_gb", "far_cpu_s_per_gb"}
LATENCY = {"p50_us", "p99_us"}
YARDSTICKS = {"memcpy", "ring_parked", "ring", "ring_update", "socket", "socket_both_ways"}
TRANSFERS = {"push", "push_and_update", "fetch", "both_ways"}
RATIOS = {"push_to_ring_parked", "push_to_ring", "push_and_update_to_ring"}
RATIOS |= {"push_and_update_to_ring_update", "push_to_memcpy", "fetch_to_memcpy"}
RATIOS |= {"push_to_socket", "fetch_to_socket"}
RATIOS |= {"both_ways_to_socket_both_ways", "small_fetch_to_grpc_echo"}
STEP = {"step_s", "fetched_bytes", "pushed_bytes", "fetch_gb_per_s", "push_gb_per_s"}
STEP |= {"fetch_wait_s"}
STEP |= {"updated_elements", "update_thread_s", "update_gb_per_s_per_thread", "exposed_update_s"}
STEP |= {"update_hidden_share", "worker_cpu_s", "daemon_cpu_s"}
STEP |= {"small_fetch_p50_us", "small_fetch_p99_us"}


def run(*arguments):
    command = [BENCH, "train", *TINY, "--steps", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class SmokeTest(unittest.TestCase):
    def check_report(self, report, workers):
        self.assertGreater(report["machine"]["cpus"], 0)
        self.assertLessEqual(report["machine"]["others_cpu_share"], 1)
        transfers = report["transfers"]
        for name in TRANSFERS:
            self.assertEqual(set(transfers[name]), COST, name)
            self.assertGreater(transfers[name]["gb_per_s"], 0, name)
        for name in YARDSTICKS:
            self.assertEqual(set(transfers["yardsticks"][name]), COST, name)
        self.assertEqual(set(transfers["yardsticks"]["grpc_echo"]), LATENCY)
        self.assertEqual(set(transfers["small_fetch"]), LATENCY)
        self.assertEqual(set(transfers["ratios"]), RATIOS)
        steps = report["steps"]
        self.assertEqual(set(steps["median"]), STEP)
        self.assertEqual(len(steps["each"]), 2)
        # Each worker fetches every parameter twice and pushes it once, in bf16; and a small layer.
        elements = 300_000 + 2048
        self.assertEqual(steps["median"]["fetched_bytes"], 2 * 2 * elements * workers)
        self.assertEqual(steps["median"]["pushed_bytes"], 2 * elements * workers)
        self.assertEqual(steps["median"]["updated_elements"], elements)
        for aim in report["aims"]:
            self.assertIn("met", aim)

    def test_shm_with_two_workers_and_two_daemons(self):
        result = run("--workers", "2", "--daemons", "2", "--transport", "shm", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.check_report(report, workers=2)
        self.assertTrue(report["transfers"]["view"]["same_addresses"])

    def test_optimizer_counts_allocations_and_page_faults_and_finds_none(self):
        command = [BENCH, "optimizer", "--params", "4M", "--rounds", "2", "--threads", "2"]
        command.append("--json")
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        kinds = {case["optimizer"] for case in report["cases"]}
        self.assertEqual(kinds, {"adamw", "adam", "sgd", "lion", "adagrad"})
        for case in report["cases"]:
            with self.subTest(case["name"]):
                self.assertEqual(case["allocations"], 0)
                self.assertEqual(case["page_faults"], 0)
                self.assertGreater(case["ratio_to_stream"], 0)
        # A page that a thread meets after the first round, at most; not one for each of 24 updates.
        self.assertLess(report["daemon_path"]["page_faults"], 12)

    def test_spill_reports_every_part(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [BENCH, "spill", "--dir", folder, "--params", "24M", "--layers", "4"]
            command += ["--oversubscription", "3", "--rounds", "1", "--json"]
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])
        report = json.loads(result.stdout)
        for part in ("streamed", "durable"):
            self.assertGreater(report[part]["ratio_to_raw"], 0, part)
            self.assertGreater(report[part]["read_bytes_per_parameter"], 0, part)
        self.assertGreater(report["durable"]["written_bytes_per_parameter"], 11.9)
        self.assertGreater(report["recovery"]["read_bytes"], 12 * 24_000_000 - 1)
        for part in ("write_amplification", "space", "checkpoint", "training", "paper"):
            self.assertIn(part, report)

    def test_export_reports_both_kinds(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [BENCH, "export", "--dir", folder, "--params", "3M", "--layers", "4"]
            result = subprocess.run(
                [*command, "--rounds", "1", "--json"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])
        report = json.loads(result.stdout)
        for kind, written in (("masters", 4), ("with_optimizer_state", 12)):
            self.assertEqual(report[kind]["written_bytes"], written * 3_000_000)
            self.assertGreater(report[kind]["ratio_to_raw"], 0, kind)

    def test_tcp_with_a_layer_table_and_a_json_file(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table"
            table.write_text("# a model\nembedding 200000\nblock 100000  # the rest\n")
            out = pathlib.Path(folder) / "report.json"
            result = run("--table", table, "--transport", "tcp", "--json", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("luwu fetch, 4 KiB", result.stdout)
            report = json.loads(out.read_text())
        self.check_report(report, workers=1)
        self.assertEqual(report["options"]["layers"], 2)
        self.assertNotIn("view", report["transfers"])

    def test_wrong_input_is_explained(self):
        with tempfile.NamedTemporaryFile("w", suffix=".table") as table:
            table.write("embedding 100\nblock many\n")
            table.flush()
            result = run("--table", table.name)
        self.assertEqual(result.returncode, 1)
        self.assertIn(":2: ", result.stderr)
        result = run("--params", "lots")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--params", result.stderr)

    def test_interrupt_ends_every_process_and_leaves_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [BENCH, "train", *TINY, "--steps", "100000"]
            with subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "TMPDIR": folder},
            ) as bench:
                seen = b""
                while b"training" not in seen:
                    piece = os.read(bench.stderr.fileno(), 4096)
                    self.assertTrue(piece, seen)
                    seen += piece
                bench.send_signal(signal.SIGINT)
                _, rest = bench.communicate(timeout=TIMEOUT_S)
            self.assertEqual(bench.returncode, 1)
            self.assertIn(b"stopped by a signal", rest)
            self.assertEqual(os.listdir(folder), [])
            self.assertEqual(self.processes_naming(folder), [])

    @staticmethod
    def processes_naming(text):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                arguments = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if text.encode() in arguments:
                found.append(entry.name)
        return found


if __name__ == "__main__":
    unittest.main()
