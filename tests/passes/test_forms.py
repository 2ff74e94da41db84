"""Forms: the search finds the cheapest, what it finds is right, and a person may pin others."""

import random
import re
from math import isinf

import pytest
from random_graphs import ATTENTION, attention, random_attention, random_graph

import meshc
from meshc.analysis.traffic.tracks import tree_size
from meshc.cost.reductions import folded_cost, ring_cost, tree_cost
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_same
from meshc.ir.clone import clone_module
from meshc.ir.ops import mesh as ops
from meshc.passes.manager import PassManager
from meshc.passes.mesh.form_search import Search
from meshc.passes.mesh.forms.problem import without_limits
from meshc.passes.mesh.partition import Partition
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError


class Everything(Search):
    """Takes every way through the function to its end."""

    def best(self, ways, live):
        return list(ways)


def chosen_forms(module, grid):
    search = Search(Partition(grid=grid).problem(module))
    return search, search.run()[0]


def judge_search(seeds, ops, tight=False):
    """Among all ways through random graphs none is cheaper; how many choices the graphs had, and on
    how many the scarcity of channels changed the cost."""
    choices = scarce = 0
    for seed in seeds:
        module, grid = random_graph(seed, ops, tight=tight)
        search, best = chosen_forms(module, grid)
        every = Everything(search.problem).run()
        assert every[0].cost.total == pytest.approx(best.cost.total, rel=1e-9), seed
        choices += len(search.several)
        free = Search(without_limits(search.problem)).run()[0]
        assert free.cost.total <= best.cost.total * (1 + 1e-9)
        scarce += free.cost.total < best.cost.total * (1 - 1e-9)
    return choices, scarce


def test_exhaustive_search_finds_nothing_cheaper():
    choices, _ = judge_search(range(20), 4)
    assert choices > 40


def test_exhaustive_search_finds_nothing_cheaper_where_channels_are_scarce():
    choices, scarce = judge_search(range(20), 4, tight=True)
    assert choices > 40 and scarce > 6


@pytest.mark.slow
def test_exhaustive_search_finds_nothing_cheaper_on_many_graphs():
    assert judge_search(range(60), 4)[0] > 120
    assert judge_search(range(200), 6)[0] > 200
    assert judge_search(range(60), 4, tight=True)[1] > 20
    assert judge_search(range(200), 5, tight=True)[1] > 40


def test_exhaustive_search_finds_nothing_cheaper_of_attention():
    """Softmaxes of both forms are the cheapest of some."""
    taken = set()
    for seed in range(40):
        module, grid = random_attention(seed)
        search, best = chosen_forms(module, grid)
        every = Everything(search.problem).run()
        assert every[0].cost.total == pytest.approx(best.cost.total, rel=1e-9), seed
        if "p" in search.several:
            assert search.several["p"] == ("deferred", "merged")
            taken.add(dict(best.chosen)["p"])
    assert taken == {"deferred", "merged"}


def selected_cycles(module, costs):
    """Cycles of a module whose collectives have their algorithms, counted op by op."""

    def of_block(block):
        found = 0.0
        for op in block.ops:
            found += costs.of(op).total
            if op.regions:
                found += of_block(op.regions[0]) * module.dims[op.dim]
            if isinstance(op, ops.AllReduce) and module.mesh.size(op.axis) > 1:
                reduced, size = costs.reduced(op), module.mesh.size(op.axis)
                if op.algo == "ring":
                    found += ring_cost(size, reduced.part, costs.device, reduced.dealing).total
                elif op.folded:
                    reach = tree_size(module.mesh, op.axis, True)
                    crosses = reach < size
                    segment = module.mesh.size("xd") if op.algo == "segmented" else 0
                    found += folded_cost(
                        op.groups, reach, crosses, reduced.words, costs.device, segment=segment
                    ).total
                else:
                    found += tree_cost(op.groups, size, reduced.words, costs.device).total
        return found

    return of_block(module.function.body)


def judge_prediction(module, grid, **settings):
    """What the search predicts is what the chosen algorithms cost; False where none fit."""
    search, best = chosen_forms(module, grid)
    passes = pipeline_to("mesh", {"partition": str(Partition(grid=grid)), **settings})[2:]
    if isinf(best.cost.total):
        with pytest.raises(MeshcError) as caught:
            PassManager(passes).run(clone_module(module))
        assert caught.value.diagnostics[0].code == "too-many-queues"
        return False
    selected = PassManager(passes).run(clone_module(module))
    assert selected_cycles(selected, search.problem.costs) == pytest.approx(best.cost.total)
    return True


def test_the_search_predicts_what_collectives_then_cost():
    for seed in range(8):
        assert judge_prediction(*random_graph(seed))
    tight = [judge_prediction(*random_graph(seed, tight=True)) for seed in range(24)]
    assert tight.count(True) > 5 and tight.count(False) > 5


@pytest.mark.parametrize("mesh", ["720x720", "360x360", "24x24"])
def test_the_search_predicts_what_collectives_of_a_model_then_cost(mesh):
    loaded = load_any("llama-3-8b", Diagnostics())
    request = CompileRequest(device="wse2", mesh=mesh, seq=4096, dtype="f16")
    module = PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))
    columns, rows = mesh.split("x")
    assert judge_prediction(module, f"{columns}x{rows}", **{"split-regions": "place-interleave"})


def pinned(module, grid, seed):
    """Pins of some of the choices that a graph has, drawn at random."""
    drawn = random.Random(seed)
    search, _ = chosen_forms(module, grid)
    return tuple(
        f"{name}={drawn.choice(forms)}"
        for name, forms in search.several.items()
        if drawn.random() < 0.6
    )


def judge_pinned(seeds):
    """Every level computes what the graph means, whatever is pinned; the refusals by code."""
    refused = {}
    for seed in seeds:
        module, grid = random_graph(seed)
        pins = pinned(module, grid, seed)
        partition = str(Partition(grid=grid, forms=pins))
        passes = pipeline_to("tile", {"partition": partition})[2:]
        stages = {"mesh": passes[:1], "tile": passes}
        for steps in stages.values():
            try:
                lowered = PassManager(steps).run(clone_module(module))
            except MeshcError as error:
                code = error.diagnostics[0].code
                refused[code] = refused.get(code, 0) + 1
                continue
            assert check_same(module, lowered).agrees, (seed, pins)
    return refused


def test_pinned_forms_compute_the_same():
    refused = judge_pinned(range(15))
    assert sum(refused.values()) < 10, refused
    assert set(refused) <= {"bad-option", "unsupported-layout", "weight-used-twice"}, refused


@pytest.mark.slow
def test_many_pinned_forms_compute_the_same():
    print(judge_pinned(range(2000)))


def lowered_model(model, phase, mesh="720x720", device="wse2", seq=4096, **settings):
    loaded = load_any(model, Diagnostics())
    request = CompileRequest(device=device, mesh=mesh, seq=seq)
    module = graph_module(loaded, phase, request)
    passes = pipeline_to("mesh", {**request.settings(), **settings})[:3]
    return PassManager(passes).run(module)


def layouts(module):
    """Split dims of each kind of value by the name that the models give it."""
    found = {}
    for param in module.function.params:
        found[param.value.name] = re.sub(r":\d+", "", str(param.value.type.layout))
    return found


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-2-13b", "codellama-34b"])
def test_the_search_finds_the_plan_of_waferllm_for_decode(model):
    """Fig. 4: the vector lies over y, weights in front of heads and features have their rows over
    y, those behind them over x; keys over y and heads over x."""
    found = layouts(lowered_model(model, "decode"))
    assert found["x"] == "<E_y>"
    assert found["wq"] == found["wk"].replace("G", "H") == "<E_y H_xh D_xd>"
    assert found["wo"] == "<H_xh D_xd E_y>"
    assert found["w_gate"] == found["w_up"] == "<E_y F_x>"
    assert found["w_down"] == "<F_x E_y>"
    assert found["cache_k"] == "<S_y~ G_xh D_xd>"
    assert found["lm_head"] == "<E_y V_x>"


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-2-13b", "codellama-34b"])
def test_the_search_finds_the_plan_of_waferllm_for_prefill(model):
    """Fig. 3: rows of tokens over y, features over x; products by cyclic shifts."""
    module = lowered_model(model, "prefill")
    found = layouts(module)
    assert found["x"] == "<L_y% E_x>"
    assert found["w_gate"] == "<E_y>>x F_x>"
    products = [op for op in module.walk() if isinstance(op, ops.Product)]
    kinds = {type(op) for op in products}
    assert kinds == {ops.Gemm, ops.GemmT}
    assert [type(op) for op in products].count(ops.GemmT) == 1  # scores


def reductions(module):
    (loop,) = (op for op in module.walk() if isinstance(op, ops.Repeat))
    return sum(isinstance(op, ops.AllReduce) for op in loop.regions[0].ops)


def test_norms_travel_with_products_where_the_type_has_the_range():
    """A decode layer has nine reductions with norms by themselves, seven without; f16 cannot."""
    loaded = load_any("llama-3-8b", Diagnostics())
    counts = {}
    for dtype in ("f32", "f16"):
        request = CompileRequest(device="wse2", mesh="256x256", seq=512, dtype=dtype)
        module = graph_module(loaded, "decode", request)
        counts[dtype] = reductions(
            PassManager(pipeline_to("mesh", request.settings())[:3]).run(module)
        )
    assert counts == {"f32": 7, "f16": 9}


def softmax_reductions(device, mesh, dtype, form):
    """Reductions of a decode layer of Llama-3-8B with a form of its softmax, and those that the
    search finds."""
    loaded = load_any("llama-3-8b", Diagnostics())
    found = []
    for forms in ((f"s={form}",), ()):
        request = CompileRequest(device=device, mesh=mesh, seq=512, dtype=dtype)
        settings = {"partition": str(Partition(grid=request.grid, forms=forms))}
        module = graph_module(loaded, "decode", request)
        found.append(reductions(PassManager(pipeline_to("mesh", settings)[:3]).run(module)))
    return tuple(found)


def test_the_maximum_of_a_softmax_travels_with_the_values_where_cores_store_messages():
    """On a wafer messages flow through the cores of a chain, which merging would stop."""
    assert softmax_reductions("wse2", "256x256", "f32", "merged") == (6, 7)
    assert softmax_reductions("wse2", "256x256", "f16", "merged") == (8, 9)
    assert softmax_reductions("h100x8", "row=2,gpu=4", "f16", "deferred") == (8, 7)


SUM = "(p @ values) @ wo"


@pytest.mark.parametrize(
    ("text", "mesh", "phase", "merges"),
    [
        (SUM, "2x3", "decode", True),
        (SUM, "2x1", "decode", False),
        (SUM, "2x3", "prefill", False),
        (f"{SUM}, p", "2x3", "decode", False),
        (f"{SUM} + (p @ keys) @ wo", "2x3", "decode", False),
        ("((p * 2) @ values) @ wo", "2x3", "decode", False),
        ("(silu(p) @ values) @ wo", "2x3", "decode", False),
    ],
)
def test_only_a_product_with_a_cache_merges_softmaxes(text, mesh, phase, merges):
    """Over cores that reduce, of single rows, and where nothing else reads the softmax."""
    extents = {"features": 6, "heads": 4, "groups": 2, "lanes": 2}
    model = ATTENTION.format(**extents).replace(SUM, text)
    module = attention(model, CompileRequest(mesh=mesh, seq=6, dtype="f32"), phase)
    search, _ = chosen_forms(module, mesh)
    assert ("p" in search.several) == merges


def test_a_pin_is_obeyed_and_the_remark_says_what_it_costs():
    module, grid = random_graph(3)
    search, best = chosen_forms(module, grid)
    name, forms = next(iter(search.several.items()))
    costs = []
    for form in forms:
        report = Diagnostics()
        Partition(grid=grid, forms=(f"{name}={form}",)).run(clone_module(module), report)
        (words,) = [m.message for m in report.messages if m.code == "forms"]
        assert f"{name} {form}" in words
        costs.append(float(re.search(r": (\d+) cycles", words)[1]))
    assert min(costs) == pytest.approx(best.cost.total, abs=1)


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("nothing=gemv_y", "there is no 'nothing'"),
        ("x=by_magic", "has no form 'by_magic'"),
        ("v1", "'v1' pins no form"),
        ("=x", "'=x' pins no form"),
    ],
)
def test_pins_that_name_nothing(pin, words):
    module, grid = random_graph(3)
    with pytest.raises(MeshcError) as caught:
        Partition(grid=grid, forms=(pin,)).run(module, Diagnostics())
    (found,) = caught.value.diagnostics
    assert found.code == "bad-option" and words in found.message


def test_a_loop_is_searched_once_for_all_ways_that_come_to_it(monkeypatch):
    """Two loops over layers of many forms, on a node with room for every weight on each GPU."""
    model = load_any("tests/data/tiny_latent_experts/deepseek-v2-8x3", Diagnostics())
    request = CompileRequest(device="h100x8", seq=6, dtype="bf16", phase="prefill")
    module = graph_module(model, "prefill", request)
    module = PassManager(meshc.parse_pipeline("canonicalize,eliminate-transpose")).run(module)
    searched, most = [], 0

    def block(self, ways, body, found=Search.block):
        searched.append(body)
        return found(self, ways, body)

    def best(self, ways, live, found=Search.best):
        nonlocal most
        kept = found(self, ways, live)
        most = max(most, len(kept))
        return kept

    monkeypatch.setattr(Search, "block", block)
    monkeypatch.setattr(Search, "best", best)
    Partition(grid="4x1").run(module, Diagnostics())
    assert len(searched) == len(set(map(id, searched))) == 3
    assert most <= 64


def test_without_a_device_each_op_takes_its_first_form():
    module, grid = random_graph(3)
    module.device = None
    search, best = chosen_forms(module, grid)
    taken = dict(best.chosen)
    assert search.problem.costs is None
    assert all(taken[name] == forms[0] for name, forms in search.several.items() if name in taken)


def test_spec_of_pins_is_read_back():
    step = Partition(grid="2x2", forms=("q=gemv_y", "h=deferred"))
    assert meshc.parse_pipeline(str(step)) == [step]


def policies(module):
    return {op.policy for op in module.walk() if isinstance(op, ops.Append)}


def test_the_policy_of_caches_goes_by_cost():
    """A ring takes a queue from the reductions over rows; on one row nothing moves by either."""
    loaded = load_any("llama-3-8b", Diagnostics())
    cycles = {}
    for mesh, wanted in (("360x360", "cyclic"), ("360x1", "shift")):
        request = CompileRequest(device="wse2", mesh=mesh, seq=512, dtype="f16")
        graph = PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))
        for kv in ("auto", "shift", "cyclic", "concat"):
            module = clone_module(graph)
            report = Diagnostics()
            lowered = PassManager([Partition(grid=mesh, kv=kv)]).run(module, report)
            assert policies(lowered) == {wanted if kv == "auto" else kv}
            (words,) = [m.message for m in report.messages if m.code == "forms"]
            cycles[mesh, kv] = int(re.search(r": (\d+) cycles", words)[1])
    assert cycles["360x360", "auto"] == cycles["360x360", "cyclic"] < cycles["360x360", "shift"]
    assert cycles["360x1", "auto"] == cycles["360x1", "shift"] == cycles["360x1", "cyclic"]


def test_a_policy_may_be_pinned_as_a_form():
    loaded = load_any("llama-3-8b", Diagnostics())
    request = CompileRequest(device="wse2", mesh="36x36", seq=512, dtype="f16")
    graph = PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))
    lowered = PassManager([Partition(grid="36x36", forms=("keys=shift",))]).run(graph)
    assert policies(lowered) == {"shift"}


def test_a_node_of_gpus_decodes_in_tensor_parallel():
    """Whole heads and features over GPUs, two reductions a layer: behind attention and behind the
    feed-forward part."""
    module = lowered_model("llama-3-8b", "decode", mesh="gpu=8", device="h100x8")
    found = layouts(module)
    assert found["wq"] == "<E_row H_gpuh D_gpud>" and found["w_gate"] == "<E_row F_gpu>"
    assert (module.mesh.size("gpuh"), module.mesh.size("gpud")) == (8, 1)
    assert reductions(module) == 2
