"""batch-tokens and split-tokens: a batch of tokens, some of prompts and some of requests that
decode, computes what each request would compute alone; so do its two parts, wherever it is split,
on one machine and on several ranks."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import RandomArrays, Session, check_same
from meshc.interp.together import rank_inputs, run_parts
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import batches, graph, ranks
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

TINY = Path(__file__).parents[1] / "data" / "tiny"
TOKENS, REQUESTS, CAPACITY = 7, 3, 9
NARROW_70B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 448,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 2,
    "num_hidden_layers": 2,
    "vocab_size": 501,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""The heads and the ratios of widths of Llama-3.3-70B, at two layers and a 64th of its width."""


@cache
def step_of(model: str) -> Module:
    """The decode step of one request."""
    loaded = load_any(model, Diagnostics())
    request = CompileRequest(device="ideal", seq=CAPACITY)
    return PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))


@cache
def passed(model: str, passes: str) -> Module:
    """The step behind ``passes``, by way of its text."""
    module = PassManager(parse_pipeline(passes)).run(clone_module(step_of(model)))
    return parse_module(Source("passed.meshir", print_module(module)))


def batched(model: str, more: str = "") -> Module:
    return passed(model, f"batch-tokens{{tokens={TOKENS},requests={REQUESTS}}}{more}")


@dataclass
class Served:
    """Random batches: chunks of prompts beside requests that decode, and tokens that are absent."""

    seed: int
    vocabulary: int
    known: list[list[int]] = field(default_factory=lambda: [[] for _ in range(REQUESTS)])

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def batch(self) -> tuple[np.ndarray, list[int], list[int]]:
        """Token ids ``[TOKENS, 1]``, owners and positions of the next batch."""
        shares = [self.random.choice([0, 1, 1, 2, 5]) for _ in range(REQUESTS)]
        order = [owner for owner, share in enumerate(shares) for _ in range(share)]
        self.random.shuffle(order)
        ids, owners, positions = [], [], []
        for owner in order[:TOKENS]:
            if len(self.known[owner]) < CAPACITY and self.random.random() < 0.9:
                token = self.random.randrange(self.vocabulary)
                positions.append(len(self.known[owner]))
                self.known[owner].append(token)
            else:
                token, _ = 0, positions.append(-1)
            ids.append(token)
            owners.append(owner)
        absent = TOKENS - len(ids)
        return (
            np.array([*ids, *[0] * absent]).reshape(TOKENS, 1),
            [*owners, *[0] * absent],
            [*positions, *[-1] * absent],
        )


def constants(model: str, seed: int) -> dict[str, np.ndarray]:
    return dict(RandomArrays(step_of(model), seed, None, ("weight",)))


def steps(seed: int, vocabulary: int, count: int = 3) -> list[tuple[np.ndarray, dict]]:
    served = Served(seed, vocabulary)
    made = [served.batch() for _ in range(count)]
    return [(ids, {"owner": owners, "pos": positions}) for ids, owners, positions in made]


def run_alone(model: str, seed: int) -> list[dict[int, np.ndarray]]:
    """The logits of each token that is there, by its place in the batch: each request continues by
    itself, a token at a time, in the step that batch-tokens was given."""
    weights = constants(model, seed)
    sessions = [Session(step_of(model), weights) for _ in range(REQUESTS)]
    found = []
    for ids, scalars in steps(seed, step_of(model).dims["V"]):
        logits = {}
        for place, (owner, position) in enumerate(
            zip(scalars["owner"], scalars["pos"], strict=True)
        ):
            if position >= 0:
                inputs = {"tokens": ids[place : place + 1]}
                (logits[place],) = sessions[owner].step(inputs, {"pos": position})
        found.append(logits)
    return found


def run_together(model: str, module: Module, seed: int) -> list[list[np.ndarray]]:
    """The logits of every batch on every rank that ``module`` has."""
    weights = constants(model, seed)
    count = module.ranks.count if module.ranks else 1
    held: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    states = [p.value.name for p in module.function.params if p.role == "state"]
    found = []
    for ids, scalars in steps(seed, step_of(model).dims["V"]):
        given = {**weights, "tokens": ids}
        each = [{**rank_inputs(module, given, n), **held[n]} for n in range(count)]
        results = run_parts(module, each, scalars)
        held = [dict(zip(states, own[1:], strict=True)) for own in results]
        found.append([own[0] for own in results])
    return found


def judge(model: str, module: Module, seed: int) -> None:
    for alone, together in zip(
        run_alone(model, seed), run_together(model, module, seed), strict=True
    ):
        for logits in together:
            for place, wanted in alone.items():
                error = np.abs(logits[place] - wanted[0]).max()
                assert error <= 1e-11 * np.abs(wanted).max()


MODELS = [
    str(TINY / "llama-9h3-tied"),
    str(TINY / "qwen2-6h2-tied-bf16"),
    str(TINY.parent / "tiny_experts" / "qwen2-moe-6x2"),
    str(TINY.parent / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"),
    str(TINY.parent / "tiny_latent_experts" / "deepseek-v3-8x3"),
]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.integers(0, TOKENS - 1),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 999),
)
def test_random_batches_are_what_requests_are_alone(
    model: str, at: int, count: int, dealt_last: bool, seed: int
) -> None:
    more = [f",tensor-parallel{{ranks={count}}}", f",split-tokens{{at={at}}}"]
    judge(model, batched(model, "".join(reversed(more) if dealt_last else more)), seed)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "config.json").write_text(json.dumps(NARROW_70B))
    return str(folder)


@pytest.mark.parametrize("more", ["", ",split-tokens{at=4}"])
def test_the_shape_of_llama_3_3_70b_on_eight_ranks(narrow: str, more: str) -> None:
    judge(narrow, batched(narrow, f",tensor-parallel{{ranks=8}}{more}"), 2)


def test_a_chunk_lies_across_the_boundary() -> None:
    """Seven tokens of one prompt: those behind the boundary see those in front of it."""
    model = MODELS[0]
    weights = constants(model, 1)
    ids = np.arange(TOKENS).reshape(TOKENS, 1)
    chunk = {"owner": [1] * TOKENS, "pos": list(range(TOKENS))}
    whole, split = (
        run_parts(module, [{**weights, "tokens": ids}], chunk)[0]
        for module in (batched(model), batched(model, ",split-tokens{at=3}"))
    )
    for one, other in zip(whole, split, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)
    changed = {**weights, "tokens": np.where(np.arange(TOKENS)[:, None] == 2, 9, ids)}
    others = run_parts(batched(model, ",split-tokens{at=3}"), [changed], chunk)[0]
    assert np.abs(others[0][:2] - split[0][:2]).max() == 0
    assert (np.abs(others[0][2:] - split[0][2:]).max(axis=(1, 2)) > 1e-6).all()


@pytest.mark.parametrize("at", range(1, TOKENS))
def test_every_token_is_in_one_part(at: int) -> None:
    """Values over all tokens are the inputs and the results alone, and every other op is there for
    each part."""
    before, after = batched(MODELS[0]), batched(MODELS[0], f",split-tokens{{at={at}}}")
    covered = [t for p in after.token_parts for t in range(p.first, p.first + after.dims[p.dim])]
    assert covered == list(range(TOKENS))
    moving = (batches.TakeTokens, batches.JoinTokens, graph.Return, graph.Repeat, graph.Yield)
    body = [op for op in after.walk() if not isinstance(op, moving)]
    assert all("B" not in tensor_type(value).dims for op in body for value in op.results)
    assert len(body) == 2 * len([op for op in before.walk() if not isinstance(op, moving)])


def test_each_collective_stands_beside_work_of_the_other_part() -> None:
    """Behind what ranks send of one part, and in front of the first op that needs it, stands a
    product of the other part, in the body of the loop."""
    module = batched(MODELS[0], ",tensor-parallel{ranks=3},split-tokens{at=4}")
    (loop,) = (op for op in module.walk() if isinstance(op, graph.Repeat))
    ops = loop.regions[0].ops
    sums = [op for op in ops if isinstance(op, ranks.AllReduce)]
    assert len(sums) == 4
    for op in sums[:-1]:
        place = ops.index(op)
        until = next(i for i, later in enumerate(ops) if op.result in later.tensors())
        between = ops[place + 1 : until]
        assert any(isinstance(other, graph.Matmul) for other in between)
        part = {"B_first", "B_second"} & {*tensor_type(op.result).dims}
        assert not any(part & {*tensor_type(v).dims} for o in between for v in o.results)


def test_what_check_compares_around_the_pass() -> None:
    """Its random batches have chunks of prompts, requests that decode and absent tokens."""
    check_same(batched(MODELS[0]), batched(MODELS[0], ",split-tokens{at=2}"))


def test_nothing_is_split_at_no_token() -> None:
    module = batched(MODELS[0])
    assert print_module(batched(MODELS[0], ",split-tokens{at=0}")) == print_module(module)


def test_tokens_of_a_request_in_another_order_are_refused() -> None:
    module = batched(MODELS[0])
    given = {**constants(MODELS[0], 1), "tokens": np.zeros((TOKENS, 1), int)}
    for positions in ([1, 0], [3, 3]):
        scalars = {"owner": [1] * TOKENS, "pos": [*positions, *[-1] * (TOKENS - 2)]}
        with pytest.raises(MeshcError, match="come in the order of positions"):
            run_parts(module, [given], scalars)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("B_second, first = 3", "B_second, first = 4"), "begins with token 4, not with 3"),
        (("B_second = 4", "B_second = 5"), "parts hold 8 tokens, but there are 7"),
        (("tokens dim = B_second", "tokens dim = Q"), "Q is no dim"),
        (("tokens dim = B_second, first = 3", "tokens dim = B_second"), "a dim and a first one"),
    ],
)
def test_parts_that_are_not_all_tokens_once_are_refused(
    change: tuple[str, str], message: str
) -> None:
    text = print_module(batched(MODELS[0], ",split-tokens{at=3}"))
    assert change[0] in text
    with pytest.raises(MeshcError, match=message):
        PassManager(parse_pipeline("canonicalize")).run(
            parse_module(Source("m.meshir", text.replace(*change)))
        )
