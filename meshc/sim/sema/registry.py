"""The table of builtins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshc.sim.lang import tree as t
from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.grouped_loops import GroupedLoops
from meshc.sim.sema.values import Frame, Val
from meshc.support.diagnostics import fail

Handler = Callable[[Any, t.Builtin, Frame, Type | None], Val]

# A layout has no tasks, queues and registers: these would do nothing there.
_OF_PES = frozenset((
    "activate", "allocate_fifo", "bind_control_task", "bind_data_task", "bind_local_task",
    "bind_task", "block", "export_symbol", "initialize_queue", "load_to_dsr",
    "load_to_dsr_xdsr", "load_to_dsr_xdsr_sr", "map", "queue_flush", "random16", "set_active_prng",
    "set_config", "set_config_unchecked", "set_control_task_table", "set_dsr_base_addr",
    "set_empty_queue_handler", "set_local_color_config", "set_teardown_handler", "unblock",
))  # fmt: skip

BUILTINS: dict[str, tuple[Handler, int, int]] = {}


def builtin(*names: str, args: tuple[int, int]) -> Callable[[Handler], Handler]:
    """Register a handler for builtins that take ``args`` = (least, most) arguments."""

    def register(handler: Handler) -> Handler:
        for name in names:
            BUILTINS[name] = (handler, *args)
        return handler

    return register


class Analyzer(GroupedLoops):
    """The complete analyser: all statements and expressions, with builtins."""

    def eval_Builtin(self, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
        """A call of a builtin."""
        entry = BUILTINS.get(node.name)
        if entry is None:
            fail("csl-unsupported", f"there is no builtin '@{node.name}'", node.span)
        handler, least, most = entry
        if self.layout is not None and node.name in _OF_PES:
            fail("csl-layout", f"'@{node.name}' belongs to the code of a PE", node.span)
        self.check_groupable(node.name)
        if not least <= len(node.args) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            fail(
                "csl-type",
                f"'@{node.name}' takes {wanted} arguments, found {len(node.args)}",
                node.span,
            )
        return handler(self, node, frame, want)
