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
from .training.train import ChatRunOptions as ChatRunOptions
from .training.train import RecipeRunOptions as RecipeRunOptions
from .training.train import train as train

__all__ = [
    "DRAFTERS",
    "FAMILIES",
    "PAIR",
    "ChatRunOptions",
    "RecipeRunOptions",
    "Sample",
    "Score",
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
