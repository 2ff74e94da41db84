"""Forms: how each graph op can be distributed, a file for each; ``FORMS`` is their table.

A form says where its operands must lie, where its result will, and which mesh ops compute it. The
first form of an op is the one that is taken where no device says what forms cost. To add one,
write it into the file of its op and let that file's function list it.
"""

from collections.abc import Callable, Mapping

from meshc.ir.core import Op
from meshc.ir.functions import Function
from meshc.ir.ops import graph
from meshc.passes.mesh.forms.append import append
from meshc.passes.mesh.forms.arg_max import arg_max
from meshc.passes.mesh.forms.centre import centre
from meshc.passes.mesh.forms.entering import embed
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.matmul import matmul
from meshc.passes.mesh.forms.pointwise import of_one, of_two
from meshc.passes.mesh.forms.results import returned, yielded
from meshc.passes.mesh.forms.rms_norm import rms_norm
from meshc.passes.mesh.forms.rope import rope
from meshc.passes.mesh.forms.softmax import softmax
from meshc.passes.mesh.forms.top_k import top_k

FormsOf = Callable[[Lowering, Op], list[Form]]
FORMS: Mapping[type[Op], FormsOf] = {
    graph.Add: of_two,
    graph.Append: append,
    graph.ArgMax: arg_max,
    graph.Centre: centre,
    graph.Embed: embed,
    graph.Matmul: matmul,
    graph.Mul: of_two,
    graph.Return: returned,
    graph.RmsNorm: rms_norm,
    graph.Rope: rope,
    graph.Scale: of_one,
    graph.Softmax: softmax,
    graph.TopK: top_k,
    graph.Yield: yielded,
}
"""The forms that an op has on a way; loops have theirs in ``repeat``."""


def forms_of(op: Op) -> FormsOf | None:
    """What gives the forms of ``op``, None where it has none."""
    return of_one if isinstance(op, Function) else FORMS.get(type(op))


__all__ = ["FORMS", "forms_of"]
