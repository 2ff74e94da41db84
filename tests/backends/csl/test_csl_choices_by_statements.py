"""Ways of writing kernels are chosen by cycles that are known before there are statements; what is
read off the statements of every way says the same."""

import random

from csl_runs import tile_text

from meshc.analysis.csl import product_choice
from meshc.analysis.csl.banks import shifts
from meshc.analysis.csl.factors import apart
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.product_choice import Choices, best
from meshc.backends.csl.pe.pe_file import kernels_of
from meshc.ir.ops.tile import Compute

EXTENTS = (1, 2, 3, 4, 7, 8, 12, 16, 24, 32)


def product(dice):
    """A product of one core, of drawn extents and types."""
    m, k, n = (dice.choice(EXTENTS) for _ in range(3))
    kind, transposed = dice.choice(("f16", "f32")), dice.choice((False, True))
    tensors = {
        "a": (kind, "in", (m, k), "M, K"),
        "b": (kind, "in", (n, k) if transposed else (k, n), "N, K" if transposed else "K, N"),
        "c": (dice.choice((kind, "f32")), "out", (m, n), "M, N"),
    }
    lines = [
        "module @one level(tile) holds(channels_matched) {",
        f"  dims M = {m}, K = {k}, N = {n}",
    ]
    lines.append("  mesh y = 1, x = 1")
    for name, (kind, role, (rows, columns), dims) in tensors.items():
        lines.append(f"  buffer %{name} : {kind}[{rows}, {columns}] {{role = {role}}}")
        at = "{lanes = [i, j], element = [i, j]}"
        lines.append(f"  port @{name} {role} {kind}[{dims}] : %{name} {at}")
    onto = dice.choice(("false", "false", "true"))
    given = f"{{accumulate = {onto}, transposed = {str(transposed).lower()}}}"
    lines += ["  program @main {", f"    tile.gemm %c, %a, %b {given}", "  }", "}"]
    return tile_text("\n".join(lines) + "\n", dice.choice(("wse2", "wse3")))


def chosen_least_and_most(dice, monkeypatch):
    """Cycles of a drawn product in the way that is chosen, and in the best and the worst one."""
    module, tried = product(dice), []

    def planned(*given):
        found = plan(*given)
        tried.extend([found.way] if found is not None else [])
        return found

    plan = product_choice.planned
    (op,) = (op for op in module.walk() if isinstance(op, Compute))
    costs, free = Costs(module.the_device(), shifts(module)), dice.choice((0, 2000, 20000))
    with monkeypatch.context() as patched:
        patched.setattr(product_choice, "planned", planned)
        way = best(apart(op), costs, free, op.params["accumulate"], Choices()).way
    cycles = {}
    for op.way in dict.fromkeys(tried):
        cycles[op.way], _ = kernels_of(module).work(op)
    return cycles[way], min(cycles.values()), max(cycles.values())


def test_products_are_written_in_the_way_of_fewest_cycles(monkeypatch):
    """In nine of ten, and in all within one cycle of 200; the worst ways take twice as long."""
    dice = random.Random(48)
    found = [chosen_least_and_most(dice, monkeypatch) for _ in range(100)]
    chosen, least, most = (sum(column) for column in zip(*found, strict=True))
    assert least <= chosen <= 1.005 * least
    assert most > 2 * least
    assert sum(one > fewest for one, fewest, _ in found) <= 10
