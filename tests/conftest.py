"""What every test runs under: one torch thread, no network for models, reproducible property tests."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny models; more threads only get in each other's way

settings.register_profile("outrider", deadline=None, derandomize=True, database=None)
settings.load_profile("outrider")


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of checked-in test data."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """Folder of small checkpoints with the trees, features and logits that their published code gives."""
    return data / "golden"
