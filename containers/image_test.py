"""What %test of an image runs: two ranks of envkit's probe, and whether they found what the recipe promises.

    python image_test.py pytorch|tensorflow FLAG...

FLAGs are those that Horovod must have been built with, no more and no less, such as: mpi gloo nccl cuda.
Standard library only. Ends with 1, and says what is wrong, if anything is.
"""

import json
import os
import subprocess
import sys
import tempfile

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")
NEEDED = ("import", "load", "flags", "init", "world", "collectives_cpu", "exchanges_cpu", "process_sets")
PACKAGES = {"pytorch": "torch", "tensorflow": "tensorflow"}


def main():
    framework, wanted = PACKAGES[sys.argv[1]], sorted(sys.argv[2:])
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared:
        argv = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", sys.executable, PROBE]
        argv += ["--framework", framework, "--shared", shared, "--session", "image-test", "--limit", "*=300"]
        done = subprocess.run(argv, env=environment(shared))
        nodes = [name for name in os.listdir(shared) if name.endswith(".json")]
        if not nodes:
            sys.exit("The probe left nothing; mpirun ended with %d." % done.returncode)
        with open(os.path.join(shared, nodes[0])) as stream:
            node = json.load(stream)
    wrong = list(faults([{**node["common"], **rank} for rank in node["ranks"]], wanted))
    for line in wrong:
        print("WRONG: " + line, file=sys.stderr)
    return 1 if wrong else 0


def environment(folder):
    """What two ranks of root need in a container without a network of its own."""
    return {
        **os.environ,
        "TMPDIR": folder,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }


def faults(ranks, wanted):
    """What is not as it should be."""
    if len(ranks) != 2:
        yield "there are %d ranks, not 2" % len(ranks)
    for number, facts in enumerate(ranks):
        for name in NEEDED:
            fact = facts.get(name)
            if fact is None or (isinstance(fact, dict) and fact.get("error")):
                yield "rank %d, %s: %s" % (number, name, fact and fact["error"])
        if facts.get("ended", {}).get("how") != "exit":
            yield "rank %d ended by %s in %s" % (number, facts.get("ended"), facts.get("phase"))
        built = sorted(name for name, value in facts.get("flags", {}).items() if value and name != "error")
        if built != wanted:
            yield "rank %d was built with %s, not %s" % (number, built, wanted)
        if facts.get("world", {}).get("size") != 2:
            yield "rank %d is in a world of %s" % (number, facts.get("world"))
    sums = [facts.get("collectives_cpu", {}).get("allreduce", {}).get("sum int64") for facts in ranks]
    if not sums or None in sums or sums.count(sums[0]) != len(sums):
        yield "the ranks do not agree on a sum: %s" % sums


if __name__ == "__main__":
    sys.exit(main())
