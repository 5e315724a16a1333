"""Answers prompts with one peer, in the environment of that peer: it imports nothing of Outrider.

`python runner.py PEER` reads a job as JSON from standard input and writes a JSON line for each measurement:

    {"model": PATH, "dtype": "bfloat16", "threads": 2, "prompts": [[1, 2], ...], "answers": [1, 4], "tokens": 96,
     "runs": 3}
    {"answers": 1, "tokens": 96, "seconds": 1.8}

Answers are greedy and of `tokens` tokens each: the end of a text is not heeded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]  # Any: JSON
Prompts = Sequence[Sequence[int]]
Answer = Callable[[Prompts], int]  # returns the number of new tokens


def with_transformers(job: Job) -> Answer:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    # Any: transformers' types contradict each other.
    model: Any = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]))
    model.train(False)
    length = {"max_new_tokens": job["tokens"], "min_new_tokens": job["tokens"]}

    def answer(prompts: Prompts) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **length)
        return int((out.shape[1] - longest) * len(prompts))

    return answer


def with_vllm(job: Job) -> Answer:
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, sorted(os.sched_getaffinity(0))[: job["threads"]])),
        HF_HUB_OFFLINE="1",
    )
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found] # in its own environment only

    most = max(job["answers"])
    llm = LLM(
        model=job["model"], dtype=job["dtype"], max_model_len=1024, max_num_seqs=most, enable_prefix_caching=False
    )
    how = SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True)

    def answer(prompts: Prompts) -> int:
        asked = [{"prompt_token_ids": list(one)} for one in prompts]
        return sum(len(one.outputs[0].token_ids) for one in llm.generate(asked, how, use_tqdm=False))

    return answer


def with_llama_cpp(job: Job) -> Answer:
    import ctypes

    import llama_cpp as llama  # type: ignore[import-not-found] # as above
    import numpy as np

    @llama.llama_log_callback  # type: ignore[untyped-decorator] # as above
    def quiet(*_: object) -> None:
        pass

    llama.llama_backend_init()
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    model = llama.llama_model_load_from_file(job["model"].encode(), llama.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp does not take the file")
    how, most = llama.llama_context_default_params(), max(job["answers"])
    how.n_seq_max, how.n_ctx, how.n_batch = most, 1024 * most, 2048
    how.n_threads = how.n_threads_batch = job["threads"]
    context = llama.llama_init_from_model(model, how)
    memory, size = llama.llama_get_memory(context), llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Compute rows of token, position, sequence and whether a logit is wanted; return the next tokens."""
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for n, (token, place, sequence, wanted) in enumerate(rows):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, place, 1, wanted
            batch.seq_id[n][0] = sequence
        if llama.llama_decode(context, batch) != 0:
            sys.exit("llama.cpp cannot compute the pass")
        found = [
            int(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, n), (size,)).argmax())
            for n, row in enumerate(rows)
            if row[3]
        ]
        llama.llama_batch_free(batch)
        return found

    def answer(prompts: Prompts) -> int:
        llama.llama_memory_clear(memory, True)
        newest = []
        for sequence, one in enumerate(prompts):
            newest += step([(token, place, sequence, place == len(one) - 1) for place, token in enumerate(one)])
        for number in range(job["tokens"] - 1):
            newest = step([(newest[n], len(one) + number, n, True) for n, one in enumerate(prompts)])
        return int(job["tokens"] * len(prompts))

    return answer


PEERS = {"transformers": with_transformers, "vllm": with_vllm, "llama.cpp": with_llama_cpp}


def main() -> None:
    job = json.load(sys.stdin)
    answer = PEERS[sys.argv[1]](job)
    answer(job["prompts"][:1])  # not counted
    for _ in range(job["runs"]):
        for count in job["answers"]:
            began = time.perf_counter()
            tokens = answer(job["prompts"][:count])
            took = time.perf_counter() - began
            print(json.dumps({"answers": count, "tokens": tokens, "seconds": took}), flush=True)


if __name__ == "__main__":
    main()
