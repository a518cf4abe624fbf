"""Tests for ReFrame: whether an environment of envkit works in the jobs of each partition, and how fast it is there.

ReFrame runs this file in its own Python, where envkit need not be: it calls the program ``envkit``.

    reframe -C SETTINGS -c reframe_tests.py -r -S EnvkitVerify.environment=pytorch -S EnvkitVerify.num_tasks=8
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError


@rfm.simple_test
class EnvkitVerify(rfm.RunOnlyRegressionTest):
    """``envkit verify`` by the launcher of a partition, or where that is 'local', by the one that envkit chooses.

    ``environment`` is a name from ``envkit list``, or the folder of a virtual environment; left out, it is the only one
    installed. ``environment_prefix`` is where it lies, ``require`` names build flags that must hold, such as nccl, and
    ``bench`` measures allreduce, too. There are ``num_tasks`` ranks.
    """

    environment = variable(str, value="")
    environment_prefix = variable(str, value="")
    require = variable(str, value="")
    bench = variable(bool, value=False)

    descr = "One verdict of envkit on Horovod"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "envkit"
    num_tasks = 2
    time_limit = "15m"
    keep_files = ["envkit.html"]
    tags = {"horovod"}

    @run_before("run")
    def say_what_to_verify(self):
        words = ["verify", *([self.environment] if self.environment else []), "--json", "--html", "envkit.html"]
        words += ["--prefix", self.environment_prefix] if self.environment_prefix else []
        words += ["--require", self.require] if self.require else []
        words += ["--bench"] if self.bench else []
        if self.job.launcher.registered_name == "local":  # of the others each task is a rank
            words += ["-n", str(self.num_tasks)]
        self.executable_opts = words

    @run_before("performance")
    def measure_what_was_asked_for(self):
        if not self.bench:
            self.perf_variables = {}

    @sanity_function
    def passes(self):
        report = self.report()
        cause = report["cause"] or {}
        words = [cause.get(key) for key in ("id", "message", "cause", "remedy")]
        text = ". ".join(word.rstrip(".") for word in words if word)
        return sn.assert_eq(report["verdict"], "pass", msg=f"envkit verify says FAIL. {text}")

    @performance_function("GB/s")
    def bus_bandwidth(self):
        return max(row["bus_bytes_per_s"] for row in self.report()["bandwidth"]) / 1e9

    @performance_function("s")
    def latency(self):
        return min(row["seconds"] for row in self.report()["bandwidth"])

    def report(self):
        """Return the report, whatever else a job prints before it."""
        output = self.read(self.stdout)
        for start in (place for place, sign in enumerate(output) if sign == "{" and output[:place][-1:] in ("", "\n")):
            try:
                content, _ = json.JSONDecoder().raw_decode(output[start:])
            except ValueError:
                continue
            if "verdict" in content:
                return content
        raise SanityError(f"envkit verify left no report: {self.read(self.stderr).strip()[-2000:]}")

    def read(self, name):
        """Return what lies in a file of the stage."""
        return (Path(self.stagedir) / sn.evaluate(name)).read_text(errors="replace")
