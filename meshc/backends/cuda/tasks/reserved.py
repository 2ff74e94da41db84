"""Names that values and buffers of tasks cannot have in a kernel."""

from __future__ import annotations

from meshc.ir.builder import Names
from meshc.ir.module import Module
from meshc.ir.ops import task, tile

_OF_C = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum errno explicit
export extern false float float2 float4 for friend goto if inline int linux long make_float4
max min mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires return short signed size_t sizeof static
static_assert static_cast stderr stdin stdout struct switch template this thread_local throw
true try typedef typeid typename union unix unsigned using virtual void volatile wchar_t while
xor xor_eq
"""
_OF_KERNEL = """
Ring arena arrive asked at b before begin cached came candidate choice chosen columns coming cosine
cosines count element end ends even filled first from from_layer front gains given group groups h
heard i item joined k key keys known lane last layers left lengths locals logits made mc me met
mine neighbours new_key new_value nth number odd own pace pages part parts pass past place published
queries ready record rest ring round row run runs score seen sine sines statistics step_ stored sum
tags target task there tile tiles to_layer token tokens told told_before told_of turn v value wait
"""

TAKEN = frozenset([*_OF_C.split(), *_OF_KERNEL.split()])
"""Words of C++, what its headers may define, and the names of what stands around tasks."""


def fresh(names: Names, name: str) -> str:
    """A name in the kernel for what the model calls ``name``. Capitals are for constants of the
    kernel and for macros, so a name of nothing else is in small letters."""
    plain = name.replace(".", "_")
    return names.fresh(plain.lower() if plain.isupper() else plain)


def indices(module: Module) -> set[str]:
    """The names of scalars, of loops and of dims of families."""
    found = {*module.scalars}
    for op in module.walk():
        if isinstance(op, tile.For):
            found.add(op.var)
        if isinstance(op, task.Family):
            found |= {*op.dims}
    return found
