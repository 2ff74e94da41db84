"""Which configurations are tried: a stage at a time, each around what the one before it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshc.backends.cuda.kernels.collective.kernel import MOST_GPUS
from meshc.backends.meshes import ALGORITHMS_OF
from meshc.backends.request import CompileRequest
from meshc.backends.target import target_named
from meshc.backends.target_options import MeshOptions
from meshc.driver.models import LoadedModel
from meshc.driver.planning.best_mesh import BEST, rectangles_around, sides_of
from meshc.driver.planning.wafers import MeshPhase
from meshc.driver.tuning.configurations import Configuration, Outcome
from meshc.driver.tuning.fronts import front, rank
from meshc.ir.ops.graph import Repeat
from meshc.support.diagnostics import MeshcError

Try = Callable[[Sequence[Configuration]], list[Outcome]]
"""Gives the outcomes of configurations, in their order."""

_SET = 3
"""Meshes on which algorithms and regions are tried."""
_GENERIC = ("auto", "k_tree")
"""Names of algorithms that leave the choice, or K, to the compiler."""
_CLUSTERS = (2, 4, 8)


@dataclass(frozen=True)
class Space:
    """What may vary. ``meshes`` are looked for where there are none, and ``gpus`` and ``batches``
    are then usual ones."""

    loaded: LoadedModel
    request: CompileRequest
    meshes: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    def explore(self, phase: str, outcomes: Try) -> None:
        """Try the configurations of a phase. Raises what reading the model raises."""
        if self.request.the_device().kind == "mesh":
            self._wafer(phase, outcomes)
        else:
            outcomes(self.on_gpus(phase))

    def asks(self, configuration: Configuration) -> bool:
        """Whether some stage may try it, whatever others gave."""
        device = self.request.the_device()
        if device.kind != "mesh":
            return configuration in self.on_gpus(configuration.phase)
        try:
            size = device.axes.sizes_of(configuration.mesh)[:2]
        except MeshcError:
            return False
        known = [device.axes.sizes_of(mesh)[:2] for mesh in self.meshes]
        return (
            (size in known if known else size <= (device.cores_x, device.cores_y))
            and configuration.batch in self.requests(configuration.phase)
            and configuration.algo in ((), *self._algorithms(configuration.phase))
            and (configuration.gpus, configuration.cluster) == (0, 0)
        )

    def requests(self, phase: str) -> tuple[int, ...]:
        """Requests of a step; a prompt is one."""
        if phase == "prefill":
            return (1,)
        usual = {
            "mesh": (1,),
            "cluster": (1, 4, target_named("cuda").MOST_REQUESTS),
            "node": (1, 4, 16, 64),
        }
        return self.batches or usual[self.request.the_device().kind]

    # --- GPUs

    def on_gpus(self, phase: str) -> list[Configuration]:
        """Numbers of GPUs, requests of a step, and on one GPU clusters of blocks."""
        device = self.request.the_device()
        most = MOST_GPUS if device.kind == "cluster" else device.cores
        usual = [n for n in range(1, most + 1) if n & (n - 1) == 0]
        found = [
            Configuration(phase, gpus=gpus, batch=batch)
            for gpus in self.gpus or usual
            for batch in self.requests(phase)
        ]
        if phase == "decode" and device.kind == "cluster":
            alone = [one for one in found if one.gpus == 1]
            found += [replace(one, cluster=blocks) for one in alone for blocks in _CLUSTERS]
        return found

    # --- wafers

    def _wafer(self, phase: str, outcomes: Try) -> None:
        """Squares, rectangles around the best, then algorithms and regions on the front."""
        batch, *others = self.requests(phase)
        plain = Configuration(phase, batch=batch)
        if self.meshes:
            found = outcomes([replace(plain, mesh=mesh) for mesh in self.meshes])
        else:
            sides = sides_of(self.loaded, phase, self.request)
            found = outcomes([replace(plain, mesh=f"{side}x{side}") for side in sides])
            best = [self._size(one) for one in _ranked(found)[:BEST]]
            near = [f"{columns}x{rows}" for columns, rows in rectangles_around(best, sides)]
            found += outcomes([replace(plain, mesh=mesh) for mesh in near])
        known = [one.configuration for one in _front(found)[:_SET]]
        outcomes(
            [
                *(replace(own, algo=algo) for own in known for algo in self._algorithms(phase)),
                *(replace(own, batch=count) for own in known for count in others),
            ]
        )
        if max(batch, *others, 0) > 1:
            layers = self._layers(phase)
            outcomes([wider for one in _front(found)[:_SET] for wider in self._wider(one, layers)])

    def _algorithms(self, phase: str) -> list[tuple[str, ...]]:
        """One algorithm of products or reductions at a time, of what was not asked for."""
        asked = {text.partition("=")[0] for text in self.request.options_of(MeshOptions).algo}
        kinds = [kind for kind in ("gemm", "all_reduce") if kind not in asked]
        if phase == "decode":
            kinds = [kind for kind in kinds if kind != "gemm"]
        return [
            (f"{kind}={name}",)
            for kind in kinds
            for name in ALGORITHMS_OF[kind]
            if name not in _GENERIC
        ]

    def _layers(self, phase: str) -> int:
        """The most regions of which each has a layer."""
        graph = MeshPhase(self.loaded, phase, self.request.changed(mesh="1x1")).graph
        return max((graph.dims[op.dim] for op in graph.walk() if isinstance(op, Repeat)), default=1)

    def _wider(self, outcome: Outcome, layers: int) -> list[Configuration]:
        """The same in as many regions as there is room for and there are ``layers``, and in half as
        many more: regions work on different requests at a time."""
        device, own = self.request.the_device(), outcome.configuration
        columns, rows = self._size(outcome)
        least = outcome.regions or 1
        places = min(layers, (device.cores_x // columns) * (device.cores_y // rows))
        axes = f"{device.axes.down}={rows},{device.axes.across}={columns}"
        return [
            replace(own, batch=batch, mesh=f"{device.axes.outer}={count},{axes}")
            for count in sorted({(least + places) // 2, places})
            for batch in self.requests(own.phase)
            if count > least and batch > 1
        ]

    def _size(self, outcome: Outcome) -> tuple[int, int]:
        """Columns and rows of a region."""
        return self.request.the_device().axes.sizes_of(outcome.configuration.mesh)[:2]


def _ranked(found: Sequence[Outcome]) -> list[Outcome]:
    """Those that can be used, the best first; where there are none, those whose time is known."""
    timed = [one for one in found if one.seconds is not None]
    return sorted([one for one in timed if one.fits] or timed, key=lambda one: rank(one, "cores"))


def _front(found: Sequence[Outcome]) -> list[Outcome]:
    return front(_ranked(found), "cores")
