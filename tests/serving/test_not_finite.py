"""A request whose values are no numbers fails alone: neither those beside it nor those that get its
caches afterwards have other logits than they have by themselves."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from meshc.driver import CompileRequest, load_any
from meshc.driver.serving import ServeRequest, opened_service
from meshc.serving.replaying import Entry, replayed
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data"
BAD, REQUESTS, TOKENS = 5, 3, 5
PROMPTS = {1: (1, 2, 3, 4, 6, 7, 8, 9, 10), 2: (7, 8, 9), 4: (3,) * 20, 5: (9,)}
SPOILERS = {-1: (BAD,) * 30, -2: (BAD,) * 30, -3: (1,) * 7 + (BAD,) * 9, 3: (BAD, 1)}
"""The first ones take all caches before a good prompt comes; the last one runs beside these."""


def checkpoint(model, folder):
    """A copy of the model, in which one row of the embedding is no numbers."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(DATA / model, folder)
    file = folder / "model.safetensors"
    tensors = {name: array.copy() for name, array in load_file(file).items()}
    tensors["model.embed_tokens.weight"][BAD] = np.nan
    file.chmod(0o644)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def served(service, prompts):
    """Logits of every request, and why requests failed. No token is the bad one."""
    server, logits, failed = service.server(), {name: [] for name in prompts}, {}

    def choose(name, row):
        if not np.isfinite(row).all():
            fail("run-refused", "no numbers")
        logits[name].append(row.copy())
        return (int(row.argmax()) + name) % BAD

    for name, prompt in prompts.items():
        server.submit(name, prompt, TOKENS, (), lambda row, name=name: choose(name, row))
    while not server.idle:
        record = server.step()
        failed |= record.failed if record else {}
    assert server.free == REQUESTS and server.scheduler.held_tokens == 0
    return logits, failed


@pytest.mark.parametrize(
    ("model", "policy", "kv"),
    [
        ("tiny/llama-3h1", "chunked", "shift"),
        ("tiny/llama-3h1", "chunked", "cyclic"),
        ("tiny_experts/mixtral-5x2", "layered", "auto"),
        ("tiny_latent_experts/deepseek-v2-8x3", "combined", "auto"),
        ("tiny_families/phi3-5h1-window", "chunked", "auto"),
    ],
)
def test_neither_neighbours_nor_heirs_of_a_request_are_spoilt(tmp_path, model, policy, kv):
    report = Diagnostics()
    request = CompileRequest(mesh="2x2", batch=REQUESTS, seq=64, kv=kv)
    how = ServeRequest(policy, None if policy == "layered" else 16, force=True)
    bad = checkpoint(model, tmp_path / "model")
    service = opened_service(load_any(str(bad), report), request, how, report)
    alone = {name: served(service, {name: prompt})[0][name] for name, prompt in PROMPTS.items()}
    assert all(len(logits) == TOKENS for logits in alone.values())
    every = SPOILERS | PROMPTS
    logits, failed = served(service, {name: every[name] for name in (-1, -2, -3, 1, 2, 3, 4, 5)})
    assert failed.keys() == SPOILERS.keys() and not any(logits[name] for name in SPOILERS)
    for name, rows in alone.items():
        np.testing.assert_allclose(logits[name], rows, rtol=1e-3, atol=1e-4)
    with pytest.raises(MeshcError, match="request 0: the logits have no largest number"):
        replayed(service.server(), [Entry(0, 0.0, (BAD, 1), 3)], 1.0)
