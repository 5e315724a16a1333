from .bundling import make_bundle as make_bundle
from .catalog import get_model as get_model
from .core.embedded import DRAFTERS as DRAFTERS
from .core.embedded import PAIR as PAIR
from .core.embedded import default_target as default_target
from .core.embedded import drafter_dir as drafter_dir
from .core.embedded import drafter_source as drafter_source
from .core.embedded import shipped_drafters as shipped_drafters
from .core.embedded import target_dir as target_dir
from .core.questions import UserQuestion as UserQuestion
from .core.questions import read_questions as read_questions
from .corpus import FAMILIES as FAMILIES
from .corpus import Sample as Sample
from .corpus import exercises as exercises
from .corpus import generate as generate
from .corpus.check import Score as Score
from .corpus.check import score as score
from .corpus.check import score_all as score_all
from .corpus.check import score_by_family as score_by_family
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
from .training.train import RecipeRunOptions as RecipeRunOptions
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
    "RecipeRunOptions",
    "Sample",
    "Schedule",
    "Score",
    "TargetFacts",
    "TeacherOutput",
    "TrainableDrafter",
    "TrainableFamily",
    "UserQuestion",
    "default_target",
    "drafter_dir",
    "drafter_source",
    "exercises",
    "generate",
    "get_model",
    "make_bundle",
    "read_questions",
    "score",
    "score_all",
    "score_by_family",
    "shipped_drafters",
    "target_dir",
    "train",
]
