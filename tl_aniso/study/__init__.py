"""Studies over training: many checkpoints, planes frozen early, measured early and late, kept on disk as they go."""

from tl_aniso.study.checkpoints import Checkpoint, CheckpointSource, DirectoryCheckpoints, MemoryCheckpoints
from tl_aniso.study.config import StudyConfig, read_config
from tl_aniso.study.executors import Executor, LocalExecutor, Task
from tl_aniso.study.ray_executor import RayExecutor
from tl_aniso.study.study import Study

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "DirectoryCheckpoints",
    "Executor",
    "LocalExecutor",
    "MemoryCheckpoints",
    "RayExecutor",
    "Study",
    "StudyConfig",
    "Task",
    "read_config",
]
