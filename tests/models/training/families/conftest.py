"""A tiny target that teaches."""

import sys
from pathlib import Path

import pytest
import torch

from outrider_models.training.core.teacher import Teacher

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this folder share


@pytest.fixture(scope="module")
def teacher(tiny_target):
    return Teacher.load(tiny_target, torch.float32)
