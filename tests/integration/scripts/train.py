import horovod.torch as hvd
import torch

hvd.init()
tensor = torch.arange(4.0) * (hvd.rank() + 1)
total = hvd.allreduce(tensor, op=hvd.Sum)
hvd.barrier()
print(f"{hvd.rank()} of {hvd.size()}: {total.tolist()}", flush=True)
