"""One rank: fork before anything touches MPI, watch the child that measures, leave the node's file behind."""

import argparse
import importlib
import os
import signal
import sys
from typing import Any

from .measure import measure
from .node import NodeView, name_of_node, plain, tell_again
from .record import Record
from .started import detect
from .watch import die_with_parent, pending, start, watch


def main() -> int:
    """State the facts of this rank. Status: 0 whatever they say; 143 when told to stop; 1 where none could be kept."""
    given = arguments()
    die_with_parent(signal.SIGTERM)
    launched = detect(os.environ)
    ranks = given.node_ranks or (launched.local_size if launched else 1) or 0
    if launched and not given.attended:  # a rank of somebody's launcher may meet what an earlier one has left
        tell_again(given.shared, launched.rank)
    node = NodeView(given.session, given.shared, ranks, given.attended)
    name = "%s-%d-%d.jsonl" % (plain(given.framework), launched.rank if launched else 0, os.getpid())
    path = os.path.join(node.local, name)
    try:
        record = Record(path)
        record.line(begin={"framework": given.framework, "host": name_of_node(), "pid": os.getpid()})
        record.note("started", launched._asdict() if launched else None)
        record.arrive("start")
    except OSError as error:  # no room is left
        sys.exit("envkit: %s cannot be written to: %s" % (node.local, error.strerror))
    child = start(path, lambda own: measure(own, given.framework, speed(given), given.extra))
    ended = watch(child, pending(given.limit), node.stopped)
    ended.update(child.last_words())
    record.line(ended=ended)
    node.finish(quick=ended["how"] == "terminated")
    if ended["how"] != "exit" or ended["status"]:
        child.leave_connection(given.shared)
    return 143 if ended["how"] == "terminated" else 0


def arguments() -> Any:
    parser = argparse.ArgumentParser(prog="probe", description="State what is true of one rank.")
    parser.add_argument("--framework", choices=["torch", "tensorflow", "none"], required=True)
    parser.add_argument("--shared", required=True, metavar="FOLDER", help="a folder that all nodes see")
    parser.add_argument("--session", required=True, metavar="NAME", help="the same in every rank of one run")
    parser.add_argument("--node-ranks", type=int, metavar="N", help="how many ranks run on this node, if not as told")
    parser.add_argument("--attended", action="store_true", help="somebody else clears away what lies on the node")
    parser.add_argument("--limit", action="append", default=[], metavar="STEP=SECONDS", help="* for any other step")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME=MODULE", help="import this, too")
    parser.add_argument("--bench", metavar="BYTES[,BYTES]", help="time the allreduce of messages of these sizes")
    parser.add_argument("--throughput", type=int, metavar="STEPS", help="time training for at most so many steps")
    parser.add_argument("--ddp", action="store_true", help="time PyTorch's DistributedDataParallel, too")
    return parser.parse_args()


def speed(given: Any) -> Any:
    """Return what is to be timed, or None."""
    if not (given.bench or given.throughput):
        return None
    asked = importlib.import_module(".speed", __package__).asked
    return asked(given.framework, given.bench, given.throughput, given.ddp)
