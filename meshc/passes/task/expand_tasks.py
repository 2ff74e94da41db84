"""expand-tasks: a decode step, or a chunk of a prompt, as families of tasks that stream their
weights and caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.batch import BATCH, LENGTH, OWNER, POSITION, tokens_of_request
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.passes.base import Pass
from meshc.passes.task.expand.decode_graph import Grain, GraphExpander
from meshc.passes.task.expand.program import ROWS
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class ExpandTasks(Pass):
    """Lower the graph of a decode step, or of a chunk of a prompt (``chunk-prompts``), to the task
    level: phases of families of tasks.

    A product with a weight becomes a family, of which a task takes ``rows`` rows and all of the
    left side, and what follows lane by lane; products of one op are one phase. What a task has to
    have whole (a norm, the attention of all heads) each computes for itself from what earlier
    phases gave. Attention is a family over requests, or the tokens of a prompt, key heads and runs
    of ``tokens`` cached tokens (0: as many as a block of a GPU asks for at once), which are dealt
    to so many tasks that all cores have one. With ``parts`` a task of a
    product takes that part of its width, where the left side lies in a buffer as it is and has at
    least ``wide`` bytes, and tasks of a further phase add the sums: less to read for each task of a
    batch. With ``merge`` the
    records that attention leaves of each run are merged by tasks of a phase, once, and not by each
    task that needs them. With ``heads`` the output projection is divided by key heads instead: a
    task takes those lanes of its width that one has attended. Attention has ``splits`` tasks for
    each key head of a request where that is not 0, and each attends for ``together`` tokens of a
    prompt at the most, as many as divide a chunk, or with 0 for as many as a block has room for.
    With ``lanes`` so many tasks share the lanes of a key head, and not its tokens: some multiply
    those of queries and keys that they have, others add these products up and weigh values. With
    ``columns`` the left sides of products lie in memory, rounded to the type of the weights, each
    given once: by the tasks that have it, or by those of a phase, a token each. In
    the graph of a rank an ``all_reduce`` is a buffer to which each rank gives what it has, in the
    memory of all, and a phase of tasks that add it up. An op without a rule is ``no-tasks``.

    Before::

        %h = graph.rms_norm %x, %norm {dim = E}
        %y = graph.matmul %h, %w {contract = [E]}

    After::

        task.phase {name = y} {
          task.family {name = y, dims = [g], sizes = [3]} {
            %x_3 = task.need %x_2 : f32[1, 4]
            %h_squares = task.local : f32[1]
            tile.square_sum %h_squares, %x_3
            %h = task.local : f32[1, 4]
            %norm_1 = task.stream %norm : f32[4]
            tile.rms_scale %h, %x_3, %h_squares, %norm_1 {count = 4, eps = 1e-05}
            %w_1 = task.stream %w[2*g +: 2] : f32[2, 4]
            %y = task.local : f32[1, 2]
            tile.gemm %y, %h, %w_1 {accumulate = false, transposed = true}
            task.give %y_1[:, 2*g +: 2], %y
          }
        }
    """

    NAME: ClassVar[str] = "expand-tasks"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset(
        {"within_bounds", "one_giver", "given_before", "streams_free"}
    )
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    rows: int = 16
    tokens: int = 0
    parts: int = 1
    merge: bool = False
    wide: int = 0
    heads: bool = False
    splits: int = 0
    together: int = 0
    lanes: int = 1
    columns: bool = False

    def run(self, module: Module, report: Diagnostics) -> Module:
        for name, value, least in (
            ("rows", self.rows, 1), ("tokens", self.tokens, 0), ("parts", self.parts, 1),
            ("wide", self.wide, 0), ("splits", self.splits, 0), ("together", self.together, 0),
            ("lanes", self.lanes, 1),
        ):  # fmt: skip
            if value < least:
                words = f"expand-tasks: {name} is {value}, but it is at least {least}"
                fail("bad-pass-option", words)
        of_prompt = LENGTH in module.scalars
        if of_prompt and (POSITION not in module.scalars or module.dims.get(BATCH, 1) != 1):
            fail(
                "no-tasks",
                "there are no tasks for whole prompts, nor for several at once",
                help="chunk-prompts{most=16} makes chunks of one; or compile with --phase decode",
            )
        if of_prompt and module.row_dim not in ROWS:
            fail(
                "no-tasks",
                f"there are no tasks for prompts whose tokens {module.row_dim} counts",
                help="call that dim L",
            )
        read = 1 if of_prompt or module.rows is None else module.dims[module.rows.dim]
        if read != 1 and read != tokens_of_request(module):
            fail(
                "no-tasks",
                "a step of a request reads one token",
                help="compile with --phase decode",
            )
        if module.scalars.get(POSITION, (0, 0))[0] < 0 and OWNER not in module.scalars:
            fail(
                "no-tasks",
                "there are no tasks for steps that leave absent requests alone",
                help="leave out chunk-prompts",
            )
        last = module.scalars.get(POSITION, (0, 0))[1]
        caches = {op.dim for op in module.walk() if isinstance(op, graph.Append)}
        least = min((module.dims[dim] for dim in caches), default=last + read)
        if caches and POSITION not in module.scalars:
            fail(
                "no-tasks",
                "there are no tasks for caches without a position that tokens are written to",
                help=f"scalars {POSITION} = 0..{least - read}",
            )
        if read > 1 and last + read > least:
            fail(
                "no-tasks",
                f"{read} tokens of a request from position {last} on leave its cache of {least}",
                help=f"scalars {POSITION} = 0..{least - read}, so that the last one has a row",
            )
        if self.merge and self.heads:
            fail(
                "bad-pass-option",
                "expand-tasks: with merge no task has what a head attended for itself (heads)",
            )
        if self.columns and self.heads:
            fail(
                "bad-pass-option",
                "expand-tasks: with columns no task has what a head attended for itself (heads)",
            )
        if self.lanes > 1 and (self.merge or self.splits):
            fail(
                "bad-pass-option",
                "expand-tasks: tasks that share lanes of a head (lanes) leave no records to merge "
                "(merge) of tokens that they share (splits)",
            )
        grain = Grain(
            self.rows,
            self.tokens,
            module.the_device().cores,
            self.parts,
            self.merge,
            self.wide,
            self.heads,
            self.splits,
            self.together,
            self.lanes,
            self.columns,
        )
        expander = GraphExpander(module, grain)
        found = expander.expand()
        for product, parts in expander.program.undivided:
            report.missed("expand-tasks", f"{product}, is not divided into {parts} parts")
        return found
