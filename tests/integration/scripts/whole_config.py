"""What Horovod writes for the workers of a tf.data service is whole when it gets the name that they wait for."""

import os
import sys
from pathlib import Path

from horovod.tensorflow.data.compute_service import TfDataServiceConfig

path, rename, texts = sys.argv[1], os.rename, []


def seen(source, target):
    """Rename, and keep what others would read then."""
    rename(source, target)
    texts.append(Path(target).read_text())


os.rename = seen
config = TfDataServiceConfig(
    dispatchers=1, workers_per_dispatcher=1, dispatcher_side="compute", addresses={"lo": [("127.0.0.1", 1)]}, key=b"k"
)
config.write(path)
print("whole" if texts == [Path(path).read_text()] and TfDataServiceConfig.read(path) == config else texts)
