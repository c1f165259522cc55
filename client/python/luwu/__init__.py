"""LuWu: a parameter service for training models larger than GPU memory.

``Session`` is the typed client API over numpy and DLPack buffers; ``luwu.torch.offload`` puts the
weights and the optimizer state of a PyTorch module into the daemons. Importing this package loads
neither torch nor the C library (that happens at the first use).
"""

from luwu.buffers import Memory, Segment
from luwu.devices import DeviceInfo
from luwu.errors import (
    AccessError, AlreadyExistsError, ArgumentError, BadHandleError, CancelledError, CorruptError,
    DeadlineError, FencedError, InternalError, JobFailedError, LayerClosedError, LibraryError,
    LuwuError, NodeLostError, NotFoundError, RankTakenError, ResourceExhaustedError, RetryableError,
    RolledBackError, SchemaMismatchError, SessionLostError, StaleEpochError, StaleVersionError,
    StateError, StepMismatchError, UnavailableError, UnsupportedError, WorkerLostError,
)
from luwu.jobs import delete_job
from luwu.library import library_version, set_log_sink
from luwu.operations import Operation
from luwu.optimizers import SGD, Adagrad, Adam, AdamW, HyperParameters, Lion, LossScaling
from luwu.session import CommitResult, Piece, Session, SessionInfo
from luwu.settings import Settings
from luwu.specs import DType, JobSpec, LayerSpec, TensorSpec, layer_of

__version__ = "0.1.0"

__all__ = [
    "AccessError", "Adagrad", "Adam", "AdamW", "AlreadyExistsError", "ArgumentError",
    "BadHandleError", "CancelledError", "CommitResult", "CorruptError", "DType", "DeadlineError",
    "DeviceInfo", "FencedError", "HyperParameters", "InternalError", "JobFailedError", "JobSpec",
    "LayerClosedError", "LayerSpec", "LibraryError", "Lion", "LossScaling", "LuwuError", "Memory",
    "NodeLostError", "NotFoundError", "Operation", "Piece", "RankTakenError",
    "ResourceExhaustedError", "RetryableError", "RolledBackError", "SGD", "SchemaMismatchError",
    "Segment", "Session", "SessionInfo", "SessionLostError", "Settings", "StaleEpochError",
    "StaleVersionError", "StateError", "StepMismatchError", "TensorSpec", "UnavailableError",
    "UnsupportedError", "WorkerLostError", "delete_job", "layer_of", "library_version",
    "set_log_sink",
]
