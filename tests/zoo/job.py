"""A small job of a user: run in each rank, with the name of the framework."""

import importlib
import sys

hvd = importlib.import_module("horovod." + sys.argv[1])
numpy = importlib.import_module("numpy")
framework = importlib.import_module(sys.argv[1])
hvd.init()
assert hvd.size() == 2, hvd.size()
for count in (3, 5000, 2000000):
    mine = numpy.arange(count, dtype="float32") * (hvd.rank() + 1)
    tensor = framework.from_numpy(mine) if sys.argv[1] == "torch" else framework.constant(mine)
    total = hvd.allreduce(tensor, op=hvd.Sum, name=f"sum{count}").numpy()
    assert (total == numpy.arange(count, dtype="float32") * 3).all()
hvd.shutdown()
sys.stdout.write("the job is done\n")
