"""Elastic training of twenty steps; a rank dies in the fifth, once.

python elastic.py FILE     the last of two ranks kills itself and makes FILE, unless that is there
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
died = Path(sys.argv[1])


@hvd.elastic.run
def train(state):
    while state.step < 20:
        if state.step == 5 and (hvd.rank(), hvd.size()) == (1, 2) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        print(f"step {state.step}: rank {hvd.rank()} of {hvd.size()}", flush=True)
        time.sleep(0.3)


state = hvd.elastic.TorchState(model, optimizer, step=0)
train(state)
print(f"end at {state.step}: rank {hvd.rank()} of {hvd.size()}", flush=True)
