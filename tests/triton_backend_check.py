"""Serves a few requests with the Triton backend under the interpreter and with torch, and compares logits.

    TRITON_INTERPRET=1 python -m tests.triton_backend_check
"""
from __future__ import annotations

from dataclasses import replace

import torch

from calibrate.backend import TorchBackend
from calibrate.decoder import Decoder
from calibrate.engine import Engine
from calibrate.graphs import GraphedDecode, rerun
from calibrate.models import resolve_model
from calibrate.serving import Limits, Request
from calibrate.triton_backend import TritonBackend

LIMITS = Limits(kv_blocks=16, block_size=16, max_num_seqs=4, max_num_batched_tokens=24)


def main() -> None:
    torch.set_num_threads(1)
    dense = replace(resolve_model("tiny"), layers=1, hidden=64, heads=4, kv_heads=2, head_dim=64, intermediate=64, vocab=50)
    experts = replace(dense, experts=4, experts_per_token=2, expert_intermediate=32, moe_layers=1)
    for model in (dense, experts):
        logits = {}
        for name, backend in (("torch", TorchBackend()), ("triton", TritonBackend("cpu")), ("graphs", TritonBackend("cpu"))):
            engine = Engine(Decoder(model, backend, "cpu", torch.float32, LIMITS.kv_blocks, 16, seed=3, max_positions=100), LIMITS)
            if name == "graphs":  # padded, fixed decode batches, rerun instead of replayed
                engine.forward = GraphedDecode(engine.decoder, LIMITS, sizes=(2, 4), capture=rerun).forward
            for i, prompt in enumerate(([1] * 30, [1] * 16 + [2] * 3, [5])):
                engine.scheduler.submit(Request(i, prompt, 3))
            rows = []
            with torch.inference_mode():
                while engine.scheduler.busy:
                    rows.append(engine.step()[3].clone())
            logits[name] = torch.cat(rows)
        for name in ("triton", "graphs"):
            worst = float((logits["torch"] - logits[name]).abs().max())
            assert worst < 1e-4, f"{name}, {model.experts} experts: logits differ by {worst}"
            assert torch.equal(logits["torch"].argmax(-1), logits[name].argmax(-1))
            print(f"{name}, {model.experts} experts: {len(logits['torch'])} rows, logits within {worst:.1e}, same tokens")


if __name__ == "__main__":
    main()
