"""Programs for CSL that read a prompt in one piece, on the simulator and in the interpreter."""

import numpy as np

from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any
from meshc.interp.bounds import compare, reduction_length
from meshc.interp.check import random_trace
from meshc.interp.tile import TileMachine
from meshc.sim.machine.options import Options
from meshc.sim.running import compile_folder, host_names
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


class Prompts:
    """The program of ``path`` that reads prompts, compiled once, with random weights; ``capacity``
    is the longest prompt. Queues are as long as those of the device."""

    def __init__(self, path, folder, **options):
        request = CompileRequest(target="csl", phase="prefill", **options)
        loaded = load_any(str(path), Diagnostics())
        compiled = compile_loaded(loaded, request)
        self.graph = graph_module(loaded, "prefill", request)
        (self.module,) = compiled.modules.values()
        _, self.capacity = self.module.scalars["len"]
        write_directory(folder / "program", compiled.files, compiled.facts)
        compile_folder(folder / "program", folder / "out")
        simulated = Options(strict_queues=True, files=False)
        self.names = host_names(folder / "program" / "run.py", simulated)
        self.constants = random_trace(self.graph, 1).constant
        self.program = self.names["Program"](str(folder / "out"), self.constants.__getitem__)
        self.machine = TileMachine(self.module)
        for name in (port[0] for port in self.names["WEIGHTS"]):
            if name not in self.names.get("CONSTANTS", ()):
                self.machine.load(name, self.constants[name])
        (self.input,) = (port[0] for port in self.names["INPUTS"])

    def compare(self, length):
        """The rows and caches behind a prompt of ``length`` random tokens beside those of the
        interpreter: how far they are apart and may be. What a longer prompt left behind stays in
        the caches of both."""
        table = np.asarray(self.constants["embedding"])
        ids = np.random.default_rng(length).integers(0, len(table), length)
        rows = table[ids][None]
        found = self.program.run({self.input: rows}.__getitem__, {"len": length})
        kept = self.program.kept()
        padded = np.zeros((1, self.capacity, rows.shape[-1]), rows.dtype)
        padded[:, :length] = rows
        self.machine.load(self.input, padded)
        wanted = self.machine.run({"len": length})
        states = {name.replace(".", "_"): array for name, array in self.machine.state.items()}
        assert kept.keys() == states.keys()
        for name, array in kept.items():
            if array.dtype.kind == "i":
                np.testing.assert_array_equal(array, states[name].reshape(array.shape))
        caches = [name for name in kept if kept[name].dtype.kind == "f"]
        precision = "f16" if "float16" in {str(kept[name].dtype) for name in caches} else "f32"
        return compare(
            [*(wanted[name][:, :length] for name in found), *(states[name] for name in caches)],
            [*found.values(), *(kept[n].reshape(states[n].shape) for n in caches)],
            precision,
            reduction_length(self.graph, precision),
        )
