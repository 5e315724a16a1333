"""The public face of every room: what its root exports, and that examples and documentation import nothing else."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from .structure import ROOT

PUBLIC = {
    "outrider_client": """
        AcceptedMeans Access AnswerText AsyncClient Backoff Client ClientConfig ClientFrame Codec Committed
        Completion Connection Cycle Decode Detector Draft Event FinishReason Finished GrpcConnection
        GrpcTransport HeadUse LastResort LinkChanged LinkError LinkState LocalModels LocalTransport Mode
        NO_DRAFTER OnReconnect Origin OutriderError Patience Privacy Private Prompt PromptMessage PullConfig
        Reason Refusal RolledBack Sampling Segment ServerDescription ServerFrame Span Statistics Stats
        TimeSplit Timeouts TokenLogprobs Transport TrustError Unverified UsageError Verdict Verified
        Violation Warned parse_fences pull_bundle
    """,
    "outrider_server": """
        LimitsConfig SecurityConfig Server ServerConfig Target TelemetryConfig Verifier load_config
    """,
    "outrider_drafters": """
        Activations BlockShape DraftState Drafter DrafterFiles DrafterOption DrafterOptions DrafterSource Eagle2
        Eagle2Drafter Eagle2Sizes Family FeatureDrafter FeatureRows Keywords LastHiddenTap LookupDrafter MoA
        MoADrafter MoASizes MoATap Pace PacedDrafter RoutedDraft RoutedDrafter Routing ScoredTree StatelessTap
        Tap TapState TargetSizes TargetWeights TextDrafter TreeChoices TreePlan TreeShape check_drafter
        grow_tree load_drafter load_tap pack_kv resolve_dir target_fingerprint tokenizer_fingerprint
        write_draft_vocab write_model
    """,
    "outrider_netsim": """
        Bursts Direction EngineChoice EngineError EngineName Link LinkStats Outage PROFILES PathStats
        Profile ProfileError VirtualClock VirtualLink parse_outage probe_profile profile_named run_outages
    """,
    "outrider_models": """
        Batch ChatRunOptions DRAFTERS FAMILIES Frequencies Length LossOutput PAIR Sample Schedule TargetFacts
        TeacherOutput TrainableDrafter TrainableFamily UserQuestion default_target drafter_dir drafter_source
        get_model held_out make_bundle read_questions shipped_drafters target_dir train
    """,
}
HEAVY = ("torch", "transformers", "grpc", "numpy", "scipy", "matplotlib", "presidio_analyzer")
IMPORT = re.compile(r"^\s*(?:from|import) (outrider_\w+(?:\.\w+)*)", re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("package", PUBLIC)
def test_the_root_exports_what_is_listed_here(package):
    assert sorted(import_module(package).__all__) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_exported_name_is_there(package):
    module = import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_importing_the_root_loads_nothing_heavy(package):
    program = f"import sys, {package}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", EXAMPLES + PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_and_documentation_import_from_roots_alone(path):
    assert [module for module in IMPORT.findall(path.read_text()) if "." in module] == []
