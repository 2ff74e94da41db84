"""Check and time the kernels of a decode step on a GPU.

    python benchmarks/gpu/decode.py [--model llama-2-7b] [--contexts 1024,4096,16384] [--batch 1]

In one run: every emitted kernel beside float64 and beside the executor on the CPU (a wrong one ends
the run); what the device does at best; the attention block and the whole step beside the time
that the device needs to read their bytes, and beside PyTorch where it is installed. Layers have
weights of their own, so that each is read from memory. Prints Markdown for docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import baselines
import pytorch
from ceiling import active_clusters, latencies, reads
from checks import cases, check
from kernels import load, probes
from programs import Step, block_bytes, choice, compiled, sizes, step_bytes
from tables import Compared, Results, as_json, as_markdown, machine
from timing import Task, in_turn

from meshc.backends.cuda.device import Device
from meshc.backends.cuda.driver_api import LIBRARY
from meshc.support.diagnostics import MeshcError

MIB = 1 << 20
PARTS = ("checks", "ceiling", "decode")


def main(given: Sequence[str] | None = None, driver: str = LIBRARY) -> int:
    """The exit code: 1 without a GPU, for a wrong kernel and for anything that is refused."""
    options = _options(given)
    try:
        with Device(library=driver) as device:
            results = measured(device, options)
    except (MeshcError, baselines.Refused) as problem:
        print(problem, file=sys.stderr)
        return 1
    text = as_json(results) if options.json else as_markdown(results)
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if results.passed else 1


def measured(device: Device, options: argparse.Namespace) -> Results:
    """All parts that were asked for. Raises MeshcError and Refused."""
    contexts: tuple[int, ...] = options.contexts
    program, texts = compiled(
        options.model, options.dtype, options.batch, max(contexts) + 1, options.page
    )
    found = sizes(program)
    results = Results(
        machine(device.facts), options.model, options.batch, found.dtype, options.repeats
    )
    if "checks" in options.parts:
        attention = found.attention(options.batch)
        cores = device.facts.multiprocessors
        extents = found.features, found.vocabulary
        for case in cases(attention, choice(program, texts), *extents, contexts, cores):
            _say(f"check: {case.title}")
            results.checks.append(check(device, case))
    if not results.passed or options.parts == ("checks",):
        return results
    _ceiling(device, results, options)
    if "decode" in options.parts:
        _decode(device, results, Step(device, program, texts), options)
    results.machine = machine(device.facts)
    return results


def _ceiling(device: Device, results: Results, options: argparse.Namespace) -> None:
    _say("reading, clusters and meetings")
    kernels = load(device, probes())
    results.reads = reads(device, kernels, options.read_mib * MIB, options.repeats)
    results.clusters = active_clusters(kernels)
    results.latencies = latencies(device, kernels, options.repeats)


def _decode(device: Device, results: Results, step: Step, options: argparse.Namespace) -> None:
    """Blocks and steps at each number of cached tokens, ours and others' in turn."""
    program, found = step.program, sizes(step.program)
    rotated = program.layers * block_bytes(found, 0)
    if program.layers < 8 or rotated < 4 * device.facts.l2_bytes:
        results.notes.append(
            f"{program.layers} layers have {rotated / MIB:.0f} MiB of weights of attention, which "
            "L2 may hold in part: their times are no measure of memory"
        )
    block, whole = step.capture(step.blocks()), step.capture(program.launches())
    torch = pytorch.torch_with_cuda() if options.torch else None
    if torch is None:
        results.notes.append("PyTorch was not timed")
    for cached in options.contexts:
        _say(f"{cached} cached")
        step.set_cached(cached)
        whole.launch()
        if not step.logits_are_finite():
            results.notes.append(f"logits with {cached} cached tokens are not finite")
        ours = Task("meshc", block.launch, block_bytes(found, cached), program.layers)
        others, errors = [], {}
        layers = baselines.Layers(device, found, program.layers, cached)
        for task, error in _others(layers, torch, results, options):
            others.append(task)
            errors[task.name] = error
        for timed in in_turn(device, [ours, *others], options.repeats):
            results.compared.append(Compared("block", cached, timed, errors.get(timed.name)))
        count = step_bytes(program, cached)
        tasks = [Task("meshc", whole.launch, count)]
        tasks += _other_steps(layers, torch, results, count)
        for timed in in_turn(device, tasks, options.repeats):
            results.compared.append(Compared("step", cached, timed))
        layers.free()
    step.free()


def _others(
    layers: baselines.Layers, torch: object, results: Results, options: argparse.Namespace
) -> Iterator[tuple[Task, float]]:
    """Others' blocks, with their errors."""
    count = block_bytes(layers.sizes, layers.cached)
    if options.theirs is not None:
        theirs = baselines.Theirs(options.theirs, options.entry)
        graph, error = theirs.checked(layers)
        yield Task(theirs.name, graph.launch, count, layers.layers), error
    if torch is not None:
        made, left_out = pytorch.blocks(torch, layers)
        _note(results, left_out)
        for one in made:
            launch = pytorch.on_stream(torch, layers.device, one.graph)
            yield Task(one.name, launch, count, layers.layers), one.error


def _other_steps(
    layers: baselines.Layers, torch: object, results: Results, count: int
) -> Iterator[Task]:
    if torch is None:
        return
    made, left_out = pytorch.steps(torch, layers)
    _note(results, left_out)
    for name, graph in made:
        yield Task(name, pytorch.on_stream(torch, layers.device, graph), count)


def _note(results: Results, left_out: Sequence[str]) -> None:
    results.notes += [note for note in left_out if note not in results.notes]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=baselines.HOOK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    positive = partial(_whole, least=1)
    parser.add_argument("--model", default="llama-2-7b", help="as `meshc compile` takes it")
    parser.add_argument("--contexts", type=_contexts, default=(1024, 4096, 16384))
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--page", type=positive, default=16, help="tokens of a page of the cache")
    parser.add_argument("--repeats", type=positive, default=50)
    parser.add_argument("--read-mib", type=positive, default=2048, help="bytes of the read ceiling")
    parser.add_argument("--parts", type=_parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--theirs", type=Path, metavar="LIB.so", help="see below")
    parser.add_argument("--entry", metavar="NAME", help="see below")
    parser.add_argument("--json", action="store_true", help="every repetition, not Markdown")
    parser.add_argument("--output", type=Path, help="a file instead of standard output")
    options = parser.parse_args(given)
    if (options.theirs is None) != (options.entry is None):
        parser.error("--theirs and --entry go together")
    return options


def _whole(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def _contexts(text: str) -> tuple[int, ...]:
    return tuple(_whole(word, 0) for word in text.split(","))


def _parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [name for name in found if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(PARTS)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
