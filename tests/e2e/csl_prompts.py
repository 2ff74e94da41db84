"""Programs for CSL that read prompts, on the simulator and in the interpreter."""

import json

import numpy as np
import pytest
from csl_condition import Moved, conditioned, moved

from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any
from meshc.interp.bounds import reduction_length
from meshc.interp.check import Trace, random_trace, run_from
from meshc.interp.inputs import RandomArrays
from meshc.interp.tile import TileMachine
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import write_directory

MODEL = """\
use blocks

model drawn(E={E}, H={H}, G={G}, D={D}, F={F}, V=11, layers={layers}, eps=1e-5, theta=100.0) {{
  weights {dtype}  accumulate f32

  param embedding[V, E], final_norm[E], lm_head[E, V]

  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)
    }}
    return x when prefill
    return rms_norm(x, final_norm, eps) @ lm_head
  }}
}}
"""
"""A llama of any size."""


def model_text(dtype, window=0, every=1, sinks=False, learned=0, bound=0.0, **sizes):
    """The text of a llama of these ``sizes``, perhaps with a ``window`` in every so many layers,
    with ``sinks`` of softmaxes, ``learned`` positions, and a ``bound`` of what is multiplied."""
    text = MODEL.format(dtype=dtype, **sizes)
    seen = f"h @ wv, {'sinks, ' if sinks else ''}{window}, {every}"
    attention = f"""h = rms_norm(x, attn_norm, eps)
      q = rope(h @ wq, theta)
      k = rope(h @ wk, theta)
      x = x + {"sink" if sinks else "gqa"}_attention(q, k, {seen}) @ wo"""
    clamped = f"""h = rms_norm(x, ffn_norm, eps)
      gate = clamp(silu(h @ w_gate), most = {bound})
      x = x + (gate * clamp(h @ w_up, -{bound}, {bound})) @ w_down"""
    changes = {
        "x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)": attention,
        "x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)": clamped if bound else "",
        "param attn_norm[E]": "param attn_norm[E], sinks[H]" if sinks else "",
        "param embedding[V, E]": "param embedding[V, E], positions[P, E]" if learned else "",
        "V=11, ": f"V=11, P={learned}, " if learned else "",
        "embed(tokens, embedding)": "embed(tokens, embedding, positions)" if learned else "",
    }
    for old, new in changes.items():
        text = text.replace(old, new or old)
    return text


class Prompts:
    """The program of ``path`` that reads prompts, compiled once, with random weights; ``capacity``
    is the longest piece of a prompt, ``room`` what the caches hold. Queues are as long as
    those of the device."""

    def __init__(self, path, folder, **options):
        request = CompileRequest(target="csl", phase="prefill", **options)
        loaded = load_any(str(path), Diagnostics())
        compiled = compile_loaded(loaded, request)
        self.graph = graph_module(loaded, "prefill", request)
        (self.module,) = compiled.modules.values()
        _, self.capacity = self.module.scalars["len"]
        self.room = self.module.capacity
        write_directory(folder / "program", compiled.files, compiled.facts)
        compile_folder(folder / "program", folder / "out")
        simulated = Options(strict_queues=True, files=False)
        self.names = host_names(folder / "program" / "run.py", simulated)
        self.constants = random_trace(self.graph, 1).constant
        self.program = self.names["Program"](str(folder / "out"), self.constants.__getitem__)
        (self.input,) = (port[0] for port in self.names["INPUTS"])
        self.precision = str(self.module.dtype())
        self.runs = []
        self.machine = self._machine(self.constants)
        self.moved_machines = {}

    def _machine(self, weights):
        """The interpreter with ``weights``."""
        machine = TileMachine(self.module)
        for name in (port[0] for port in self.names["WEIGHTS"]):
            if name not in self.names.get("CONSTANTS", ()):
                machine.load(name, weights[name])
        return machine

    def _moved(self, seed):
        """A machine that has done all runs with numbers moved by ``seed``, and its last results.
        It goes on with the runs that it has not done yet."""
        machine, done = self.moved_machines.get(seed, (None, 0))
        if machine is None:
            machine = self._machine(Moved(self.constants, self.precision, seed))
        for number, (rows, told) in enumerate(self.runs[done:], done):
            machine.load(self.input, moved(rows, self.precision, [seed, number]))
            results = machine.run(told)
        self.moved_machines[seed] = machine, len(self.runs)
        return machine, results

    def compare(self, length, position=0):
        """The rows and caches behind ``length`` random tokens of a prompt, of which ``position``
        are cached already, beside those of the interpreter: how far they are apart and may be. What
        a longer prompt left behind stays in the caches of both."""
        table = np.asarray(self.constants["embedding"])
        ids = np.random.default_rng([length, position]).integers(0, len(table), length)
        rows = table[ids][None]
        told = {"len": length, "pos": position}
        told = {name: told[name] for name in self.module.scalars}
        found = self.program.run({self.input: rows}.__getitem__, told)
        kept = self.program.kept()
        padded = np.zeros((1, self.capacity, rows.shape[-1]), rows.dtype)
        padded[:, :length] = rows
        self.runs.append((padded, told))
        self.machine.load(self.input, padded)
        wanted = self.machine.run(told)
        states = {name.replace(".", "_"): array for name, array in self.machine.state.items()}
        assert kept.keys() == states.keys()
        for name, array in kept.items():
            if array.dtype.kind == "i":
                np.testing.assert_array_equal(array, states[name].reshape(array.shape))
        caches = [name for name in kept if kept[name].dtype.kind == "f"]

        def judged(machine, results):
            held = {name.replace(".", "_"): array for name, array in machine.state.items()}
            return [*(results[n][:, :length] for n in found), *(held[n] for n in caches)]

        return conditioned(
            judged(self.machine, wanted),
            [*found.values(), *(kept[n].reshape(states[n].shape) for n in caches)],
            self.precision,
            reduction_length(self.graph, self.precision),
            lambda seed: judged(*self._moved(seed)),
        )


class Conversation:
    """The two programs of the model in ``path``, of which one reads prompts and the other continues
    them, or the one that does both, or with ``phase = "decode"`` the steps alone, with random
    weights; ``room`` is what the caches hold. Queues are as long as those of the device. The judge
    reads every prompt alone and, where there is a program for that, in one piece."""

    def __init__(self, path, folder, **options):
        loaded = load_any(str(path), Diagnostics())
        compiled = compile_loaded(loaded, CompileRequest(target="csl", **options))
        wanted = ["decode"] if options.get("phase") == "decode" else ["prefill", "decode"]
        assert [*compiled.modules] == wanted, compiled.report.messages
        write_directory(folder / "program", compiled.files, compiled.facts)
        self.folders = [""] if "layout.csl" in compiled.files else [*compiled.modules]
        for phase in self.folders:
            compile_folder(folder / "program" / phase, folder / "out" / phase)
        self.reports = [
            json.loads(compiled.files[f"{phase}/report.json".lstrip("/")]) for phase in self.folders
        ]
        simulated = Options(strict_queues=True, files=False)
        names = host_names(folder / "program" / "run.py", simulated)
        options |= {"chunk": None, "phases": "two", "batch": 1}
        whole = CompileRequest(target="csl", **options)
        self.graphs = {phase: graph_module(loaded, phase, whole) for phase in compiled.modules}
        self.room = compiled.modules["decode"].capacity
        self.precision = str(compiled.modules["decode"].dtype())
        # Numbers of 16 bits are judged by the interpreter of the tile level, which rounds to them.
        self.judges = self.graphs
        if self.precision != "f32":
            tiles = CompileRequest(compile_to="tile", **options)
            self.judges = compile_loaded(loaded, tiles).modules
        self.weights = RandomArrays(self.graphs["decode"], 5, {}, ("weight",))
        self.model = names["Model"](str(folder / "out"), self.weights.__getitem__)

    def ids(self, length, number=0):
        """A random prompt of ``length`` tokens, the ``number``-th of these."""
        most = len(np.asarray(self.weights["embedding"]))
        return np.random.default_rng([length, number]).integers(0, most, length).tolist()

    def refuses(self, length, count):
        """Hold the host to refuse ``length`` and ``count`` tokens."""
        with pytest.raises(SystemExit, match="do not fit a cache"):
            self.model.generate(self.ids(length), count)

    def continued(self, length, count):
        """A random prompt of ``length`` tokens, ``count`` tokens behind it, and their logits."""
        ids, found = self.ids(length), []
        tokens = self.model.generate(ids, count, lambda token, logits: found.append(logits), ())
        assert len(tokens) == count
        return ids, tokens, found

    def continued_all(self, lengths, count):
        """Random prompts of some lengths, ``count`` tokens behind each, and their logits, by one
        call of the host."""
        prompts = [self.ids(length, number) for number, length in enumerate(lengths)]
        found = [[] for _ in prompts]

        def told(number, token, logits):
            found[number].append(logits)

        answers = self.model.generate_all(prompts, count, told, ())
        assert [len(tokens) for tokens in answers] == [count] * len(prompts)
        return list(zip(prompts, answers, found, strict=True))

    def compare(self, length, count):
        """The logits of ``count`` steps behind a prompt of ``length`` tokens beside those of the
        interpreter, which is told the same tokens."""
        return self._compared([self.continued(length, count)])

    def compare_all(self, lengths, count):
        """The same for prompts that the host is given together."""
        return self._compared(self.continued_all(lengths, count))

    def _compared(self, answers):
        """The logits of ``answers``, each a prompt, tokens behind it and their logits, beside those
        of the interpreter."""

        def wanted(weights):
            return [one for ids, tokens, _ in answers for one in self._logits(weights, ids, tokens)]

        return conditioned(
            wanted(self.weights),
            [logits for _, _, found in answers for logits in found],
            self.precision,
            reduction_length(self.graphs["decode"], self.precision),
            lambda seed: wanted(Moved(self.weights, self.precision, seed)),
        )

    def _logits(self, weights, ids, tokens):
        """Those of the interpreter behind a prompt, and behind each of ``tokens`` but the last."""
        state, steps, first = None, [*ids, *tokens[:-1]], 0
        if "prefill" in self.judges:
            steps, first = steps[len(ids) - 1 :], len(ids) - 1
            if first:
                read = self._trace(weights, [ids[:-1]])
                state = run_from(self.judges["prefill"], read).state
        trace = self._trace(weights, [[token] for token in steps], first)
        logits = run_from(self.judges["decode"], trace, state).results
        return [one.ravel() for one in logits[-len(tokens) :]]

    def _trace(self, weights, runs, position=None):
        """What runs are given that each read some tokens; they are steps from ``position`` on, or
        pieces of prompts."""
        table, made = np.asarray(weights["embedding"]), []
        for number, run in enumerate(runs):
            ids = np.array(run)[None]
            told = {"len": len(run)} if position is None else {"pos": position + number}
            rows = table[ids]
            if "positions" in [*weights]:
                first = 0 if position is None else position + number
                learned = np.asarray(weights["positions"])[first : first + len(run)]
                rows = rows.astype(np.float32) + learned.astype(np.float32)
            made.append(({"tokens": ids, "x": rows}, told))
        return Trace(weights, tuple(made))
