"""What a kernel reads or writes before it waits for the grid in front of it, by its machine code.

Compilers move loads: of memory that is said not to change they may do so across the wait. So the
text of a kernel does not settle this, and its instructions are followed from the entry to each
``ACQBULK``, which is that wait, along with the parameters that registers were computed from.
Everything is taken too widely rather than too narrowly: what may happen counts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PARAMETERS = 0x210  # where the parameters of a kernel begin in constant bank 0 on sm_90
GLOBAL = {
    "ATOM", "ATOMG", "LD", "LDG", "LDGMC", "LDGSTS", "RED", "REDG", "ST", "STG", "STGMC", "UBLKCP",
    "UBLKPF", "UBLKRED", "UTMALDG", "UTMASTG",
}  # fmt: skip

_CODE = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"([.$\w]+):")
_TARGET = re.compile(r"`\((.+?)\)")
_REGISTER = re.compile(r"\b(U?R)(\d+)\b")
_CONSTANT = re.compile(r"c\[0x0\]\[(?:(\w+)\+)?(0x[0-9a-f]+)\]")
Origins = dict[tuple[str, int], frozenset[int]]


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly; ``targets`` are the labels that it names."""

    guard: str
    opcode: str
    operands: str
    targets: tuple[str, ...]

    @property
    def stem(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".")[0]


def _section(assembly: str, kernel: str) -> tuple[list[Instruction], dict[str, int]]:
    """The instructions of a kernel, and which of them labels stand in front of."""
    found, labels = [], {}
    text = assembly.split(f"\n.text.{kernel}:", 1)[1]
    for line in text.split("\n.text.", 1)[0].split("\n"):
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif code := _CODE.match(line):
            found.append(
                Instruction(code[1] or "", code[2], code[3], tuple(_TARGET.findall(code[3])))
            )
    return found, labels


def _followers(code: Sequence[Instruction], labels: dict[str, int], at: int) -> Iterator[int]:
    """Which instructions may come next."""
    one = code[at]
    assert one.stem not in ("BRX", "BRXU", "JMX", "JMXU"), "a jump whose targets are not known"
    always = not one.guard
    if always and one.stem in ("EXIT", "RET"):
        return
    if one.stem == "BSSY":  # names the place behind the BSYNC at which threads meet again
        assert all(code[labels[target] - 1].stem == "BSYNC" for target in one.targets)
    else:
        yield from (labels[target] for target in one.targets if target in labels)
    if not (always and one.opcode == "BRA" and one.operands.startswith("`")):
        yield at + 1


def _origins(text: str, state: Origins, sizes: Sequence[int]) -> frozenset[int]:
    """The parameters that operands were computed from."""
    found: frozenset[int] = frozenset()
    for kind, number in _REGISTER.findall(text):
        found |= state.get((kind, int(number)), frozenset())
    for index, offset in _CONSTANT.findall(text):
        at = int(offset, 16) - PARAMETERS
        if index:
            return frozenset(range(len(sizes)))
        end = 0
        for n, size in enumerate(sizes):
            start = -(-end // size) * size
            end = start + size
            if start <= at < end:
                found |= {n}
    return found


def _written(one: Instruction) -> list[tuple[str, int]]:
    """The registers that an instruction gives new values."""
    operands = one.operands.split(", ")
    if one.stem in ("SHFL", "LOP3", "PLOP3", "VOTE", "R2UR") and re.match(r"!?U?P", operands[0]):
        operands = operands[1:]
    first = _REGISTER.fullmatch(operands[0].split(".")[0]) if operands else None
    if not first:
        return []
    wide = 4 if ".128" in one.opcode else 2 if re.search(r"\.64|\.WIDE|CS2R", one.opcode) else 1
    return [(first[1], int(first[2]) + n) for n in range(wide)]


def _step(one: Instruction, state: Origins, sizes: Sequence[int]) -> Origins:
    """Where registers come from behind an instruction."""
    targets = _written(one)
    if not targets or one.stem in ("ST", "STG", "STS", "RED", "REDG"):
        return state
    sources = one.operands.split(", ", 1)
    loaded = one.stem in ("LD", "LDG", "LDS", "ATOM", "ATOMG", "ATOMS")
    origins = frozenset() if loaded else _origins(sources[-1], state, sizes)
    after = dict(state)
    for register in targets:
        # One of the lanes, which ELECT picked, gives a uniform register its value.
        kept = state.get(register, frozenset()) if one.guard and one.stem != "R2UR" else frozenset()
        after[register] = origins | kept
    return after


def _address(one: Instruction) -> str:
    """The part of an access to memory that says where."""
    return " ".join(re.findall(r"(?<!desc)\[([^\]]*)\]", one.operands))


def before_the_wait(assembly: str, kernel: str, sizes: Sequence[int]) -> dict[int, set[str]]:
    """The parameters, of these sizes in bytes, through which memory may be reached by a thread that
    has not waited for the grid in front, with the opcodes that do."""
    code, labels = _section(assembly, kernel)
    states: dict[int, Origins] = {0: {}}
    found: dict[int, set[str]] = {}
    waiting = [0]
    while waiting:
        at = waiting.pop()
        one, state = code[at], states[at]
        if one.stem in GLOBAL:
            for parameter in _origins(_address(one), state, sizes):
                found.setdefault(parameter, set()).add(one.opcode)
        if one.opcode == "ACQBULK" and not one.guard:
            continue
        after = _step(one, state, sizes)
        for follower in _followers(code, labels, at):
            known = states.get(follower)
            both = dict(after) if known is None else dict(known)
            if known is not None:
                for register, origins in after.items():
                    both[register] = both.get(register, frozenset()) | origins
            if both != known:
                states[follower] = both
                waiting.append(follower)
    return found
