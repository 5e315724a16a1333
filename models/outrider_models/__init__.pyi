from .bundling import make_bundle as make_bundle
from .catalog import get_model as get_model
from .core.embedded import DRAFTERS as DRAFTERS
from .core.embedded import PAIR as PAIR
from .core.embedded import default_target as default_target
from .core.embedded import drafter_dir as drafter_dir
from .core.embedded import drafter_source as drafter_source
from .core.embedded import shipped_drafters as shipped_drafters
from .core.embedded import target_dir as target_dir
from .core.held_out import FAMILIES as FAMILIES
from .core.held_out import Sample as Sample
from .core.held_out import held_out as held_out
from .core.questions import UserQuestion as UserQuestion
from .core.questions import read_questions as read_questions
from .training.core.family import TrainableFamily as TrainableFamily
from .training.core.interfaces import Batch as Batch
from .training.core.interfaces import Frequencies as Frequencies
from .training.core.interfaces import LossOutput as LossOutput
from .training.core.interfaces import TargetFacts as TargetFacts
from .training.core.interfaces import TeacherOutput as TeacherOutput
from .training.core.interfaces import TrainableDrafter as TrainableDrafter
from .training.core.rates import Length as Length
from .training.core.rates import Schedule as Schedule
from .training.train import ChatRunOptions as ChatRunOptions
from .training.train import train as train

__all__ = [
    "DRAFTERS",
    "FAMILIES",
    "PAIR",
    "Batch",
    "ChatRunOptions",
    "Frequencies",
    "Length",
    "LossOutput",
    "Sample",
    "Schedule",
    "TargetFacts",
    "TeacherOutput",
    "TrainableDrafter",
    "TrainableFamily",
    "UserQuestion",
    "default_target",
    "drafter_dir",
    "drafter_source",
    "get_model",
    "held_out",
    "make_bundle",
    "read_questions",
    "shipped_drafters",
    "target_dir",
    "train",
]
