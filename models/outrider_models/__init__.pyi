from .bundling import make_bundle as make_bundle
from .core.embedded import DRAFTERS as DRAFTERS
from .core.embedded import PAIR as PAIR
from .core.embedded import drafter_dir as drafter_dir
from .core.embedded import drafter_source as drafter_source
from .core.embedded import target_dir as target_dir
from .corpus import FAMILIES as FAMILIES
from .corpus import Sample as Sample
from .corpus import exercises as exercises
from .corpus import generate as generate
from .corpus.check import Score as Score
from .corpus.check import score as score
from .corpus.check import score_all as score_all
from .corpus.check import score_by_family as score_by_family
from .training.chats.train import ChatRunOptions as ChatRunOptions
from .training.chats.train import train_on_chats as train_on_chats
from .training.recipes.train import RecipeRunOptions as RecipeRunOptions
from .training.recipes.train import train_recipe as train_recipe

__all__ = [
    "DRAFTERS",
    "FAMILIES",
    "PAIR",
    "ChatRunOptions",
    "RecipeRunOptions",
    "Sample",
    "Score",
    "drafter_dir",
    "drafter_source",
    "exercises",
    "generate",
    "make_bundle",
    "score",
    "score_all",
    "score_by_family",
    "target_dir",
    "train_on_chats",
    "train_recipe",
]
