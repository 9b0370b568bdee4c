"""Pure tasks, named by what they are made of, done by other processes or by the machines of a Dask cluster.

Nothing here schedules, retries or moves data by itself: `concurrent.futures` does on one machine, `dask.distributed` on
many. What tasks compute is said where it belongs (`calibration/shards.py`, `output/packed_elsewhere.py`,
`searching/plans_elsewhere.py`, `benching/on_workers.py`).
"""

from onnxq.cluster.engine import Engine as Engine
from onnxq.cluster.engine import require_readable as require_readable
from onnxq.cluster.engine import results as results
from onnxq.cluster.tasks import Task as Task
from onnxq.cluster.tasks import as_given as as_given
from onnxq.cluster.tasks import named as named
from onnxq.cluster.tasks import unlike as unlike
from onnxq.cluster.words import open_engine as open_engine
