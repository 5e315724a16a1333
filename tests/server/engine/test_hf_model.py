"""Where a target is put, in which type, and what its checkpoint's faults look like."""

import json

import pytest
import torch

from outrider_proto.errors import UsageError
from outrider_server.engine import hf_model
from outrider_server.engine.hf_model import costly_placement, resolve_device, resolve_dtype
from outrider_server.engine.target import Target

from ..tiny_targets import build

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def checkpoint(tmp_path):
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def set_config(directory, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_auto_is_float32_on_a_cpu_and_the_checkpoints_own_on_a_gpu(checkpoint):
    assert resolve_dtype("auto", checkpoint, CPU) == torch.float32
    assert resolve_dtype("auto", checkpoint, GPU) == torch.bfloat16
    set_config(checkpoint, dtype=None)
    assert resolve_dtype("auto", checkpoint, GPU) == torch.float32
    set_config(checkpoint, dtype="float8_e4m3fn")
    assert resolve_dtype("auto", checkpoint, GPU) == torch.bfloat16
    with pytest.raises(UsageError, match="dtype=half: need one of auto, float32, bfloat16, float16"):
        resolve_dtype("half", checkpoint, CPU)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made_on = []
    monkeypatch.setattr(torch, "empty", lambda size, device: made_on.append(device) or torch.zeros(size))
    resolve_device("auto")
    assert made_on == [torch.device("cuda")]


def test_devices_that_are_not_there():
    with pytest.raises(UsageError, match="device=toaster: "):
        resolve_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device=cuda: "):
            resolve_device("cuda")


@pytest.mark.parametrize(
    ("gpu", "bf16", "dtype", "device", "warning"),
    [
        (False, True, torch.float32, CPU, None),
        (False, True, torch.bfloat16, CPU, None),
        (False, False, torch.bfloat16, CPU, "dtype=bfloat16: this processor does not compute in it"),
        (True, True, torch.float32, CPU, "device=cpu: this machine has a GPU"),
        (True, True, torch.float32, GPU, "dtype=float32: twice the memory"),
        (True, True, torch.bfloat16, GPU, None),
    ],
)
def test_a_choice_that_costs_much_is_told(monkeypatch, checkpoint, gpu, bf16, dtype, device, warning):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(hf_model, "cpu_has_bf16", lambda: bf16)
    told = costly_placement(dtype, device, checkpoint)
    assert told is None if warning is None else told is not None and told.startswith(warning)


def test_a_loaded_target_tells_it(monkeypatch, checkpoint, caplog):
    monkeypatch.setattr("outrider_server.engine.hf_model.cpu_has_bf16", lambda: False)
    assert Target.load(str(checkpoint), "bfloat16", "cpu").kv.dtype == torch.bfloat16
    assert "several times longer" in caplog.text


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq"])
def test_quantized_without_its_library(checkpoint, method):
    set_config(checkpoint, quantization_config={"quant_method": method, "bits": 4, "load_in_4bit": True})
    with pytest.raises(UsageError, match=f"target {checkpoint}: \\w+: .+") as error:
        Target.load(str(checkpoint))
    assert "\n" not in str(error.value)


def test_a_file_cut_short(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UsageError, match=f"target {checkpoint}: SafetensorError: "):
        Target.load(str(checkpoint))


def test_layers_that_slots_do_not_suit(monkeypatch, checkpoint):
    def fail(*args, **options):
        raise RuntimeError("view size is not compatible\nwith input tensor's size")

    monkeypatch.setattr("outrider_server.engine.target.check_against_eager", fail)
    with pytest.raises(UsageError, match=r"llama: cannot be a target: RuntimeError: view size is not compatible$"):
        Target.load(str(checkpoint))
