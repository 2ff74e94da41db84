"""Reads what a cubin says about its kernels: registers, stack, launch bounds, parameters.

A cubin is an ELF file whose ``.nv.info`` sections hold lists of attributes: those of ``.nv.info``
name a symbol, those of ``.nv.info.KERNEL`` belong to that kernel. The format has no public
description; the numbers here are what ``cuobjdump -elf`` prints for the same bytes, and tests
compare the two. Bytes spilled and static shared memory stand in the assembler's report only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE, _INFO, _NO_BITS = 2, 0x70000000, 8
_FUNCTION, _ENTRY = 2, 0x10

# Attributes of .nv.info (EIATTR_...); a record is a format, an attribute and 16 bits, which are
# the length of what follows in the last of the formats and the value itself in the others.
_FORMATS, _SIZED = range(1, 5), 4
_MAX_THREADS, _REQUIRED_THREADS, _PARAMETER = 0x05, 0x10, 0x17
_FRAME_SIZE, _MIN_STACK, _CLUSTER, _REGISTERS = 0x11, 0x12, 0x3D, 0x2F

_ENTRY_LINE = re.compile(r"Compiling entry function '([^']+)'")
_SPILL_LINE = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED_LINE = re.compile(r"Used \d+ registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class CubinError(ValueError):
    """The bytes are no cubin, or one whose report does not belong to it."""


class ReportError(CubinError):
    """The assembler's report leaves out a kernel."""


@dataclass(frozen=True)
class KernelResources:
    """What one kernel needs: registers per thread, bytes of stack and spills per thread, static
    shared bytes per block, threads per block at most (None: the device's bound), blocks per cluster
    (None: chosen at launch), and the size in bytes of each parameter."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    max_threads: int | None
    cluster: int | None
    parameters: tuple[int, ...]


def kernel_resources(data: bytes, report: str) -> dict[str, KernelResources]:
    """The kernels of a cubin by name, with the report that the assembler (``-v``) gave for it.

    Raises CubinError; reads no more than ``len(data)`` bytes whatever they hold.
    """
    try:
        return _resources(_Elf(data), assembler_report(report))
    except (struct.error, UnicodeDecodeError) as problem:
        raise CubinError(f"the cubin is cut short or damaged: {problem}") from problem


def assembler_report(report: str) -> dict[str, tuple[int, int]]:
    """Bytes spilled (stored and loaded) and static shared bytes of each kernel."""
    found: dict[str, tuple[int, int]] = {}
    name, spilled = None, 0
    for line in report.splitlines():
        if entry := _ENTRY_LINE.search(line):
            name, spilled = entry[1], 0
        elif name is not None and (spill := _SPILL_LINE.search(line)):
            spilled += int(spill[1]) + int(spill[2])
            # Functions that are not inlined follow the kernel that they belong to.
            found[name] = (spilled, found.get(name, (0, 0))[1])
        elif name is not None and _USED_LINE.search(line):
            shared = _SHARED.search(line)
            found[name] = (spilled, int(shared[1]) if shared else 0)
    return found


@dataclass(frozen=True)
class _Section:
    """A section of an ELF file: its name, type, bytes and the section that it links to."""

    name: str
    type: int
    data: memoryview
    link: int


class _Elf:
    """Sections and function symbols of a 64-bit little-endian ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise CubinError("the bytes are no cubin: they do not begin as a 64-bit ELF file")
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        if size != _SECTION.size or start + size * count > len(data):
            raise CubinError("the cubin is cut short or damaged: its section table lies outside")
        headers = [_SECTION.unpack_from(data, start + size * i) for i in range(count)]
        # Views, not copies: sections of a damaged file may all claim the whole of it.
        contents = [_contents(memoryview(data), header) for header in headers]
        if names >= count:
            raise CubinError("the cubin is cut short or damaged: its sections have no names")
        table = bytes(contents[names])
        self.sections = [
            _Section(_name(table, header[0]), header[1], content, header[6])
            for header, content in zip(headers, contents, strict=True)
        ]

    def entries(self) -> Iterator[tuple[int, str]]:
        """Each kernel's index in the symbol table and its name."""
        tables = [section for section in self.sections if section.type == _SYMBOL_TABLE]
        if len(tables) != 1 or tables[0].link >= len(self.sections):
            raise CubinError("the cubin is cut short or damaged: it has no table of symbols")
        names = bytes(self.sections[tables[0].link].data)
        for index in range(len(tables[0].data) // _SYMBOL.size):
            symbol = _SYMBOL.unpack_from(tables[0].data, index * _SYMBOL.size)
            if symbol[1] & 0xF == _FUNCTION and symbol[2] & _ENTRY:
                yield index, _name(names, symbol[0])

    def attributes(self, name: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The attributes of the section ``name`` that have a value of whole 32-bit words."""
        for section in self.sections:
            if section.type == _INFO and section.name == name:
                yield from _attributes(section.data)


def _contents(data: memoryview, header: tuple[int, ...]) -> memoryview:
    if header[1] == _NO_BITS:
        return data[:0]
    start, size = header[4], header[5]
    if start + size > len(data):
        raise CubinError("the cubin is cut short or damaged: a section lies outside of it")
    return data[start : start + size]


def _name(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    if at > len(names) or end < 0:
        raise CubinError("the cubin is cut short or damaged: a name lies outside of its table")
    return names[at:end].decode()


def _attributes(data: memoryview) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 0
    while at < len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form not in _FORMATS:
            raise CubinError(f"the cubin is cut short or damaged: attribute format {form}")
        if form == _SIZED:
            if at + value > len(data):
                raise CubinError("the cubin is cut short or damaged: an attribute goes on too far")
            yield attribute, struct.unpack_from(f"<{value // 4}I", data, at)
            at += value


def _resources(elf: _Elf, report: dict[str, tuple[int, int]]) -> dict[str, KernelResources]:
    registers: dict[int, int] = {}
    stack: dict[int, int] = {}
    for attribute, words in elf.attributes(".nv.info"):
        if attribute == _REGISTERS and len(words) == 2:
            registers[words[0]] = words[1]
        elif attribute in (_FRAME_SIZE, _MIN_STACK) and len(words) == 2:
            stack[words[0]] = max(stack.get(words[0], 0), words[1])
    found = {}
    for symbol, name in elf.entries():
        if symbol not in registers or symbol not in stack:
            raise CubinError(f"the cubin does not say what kernel '{name}' needs")
        if name not in report:
            raise ReportError(f"the assembler's report does not name kernel '{name}'")
        threads, cluster, parameters = _launch_facts(elf, name)
        found[name] = KernelResources(
            registers[symbol], stack[symbol], *report[name], threads, cluster, parameters
        )
    if not found:
        raise CubinError("there is no kernel in the cubin")
    return dict(sorted(found.items()))


def _launch_facts(elf: _Elf, name: str) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Threads at most, blocks per cluster and sizes of parameters of one kernel."""
    threads = cluster = None
    parameters: dict[int, int] = {}
    for attribute, words in elf.attributes(f".nv.info.{name}"):
        if attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(words) == 3:
            threads = words[0] * words[1] * words[2]
        elif attribute == _CLUSTER and len(words) == 3:
            cluster = words[0] * words[1] * words[2]
        elif attribute == _PARAMETER and len(words) == 3:
            # Index, then ordinal and offset of 16 bits each, then the size above 18 other bits.
            parameters[words[1] & 0xFFFF] = words[2] >> 18
    if sorted(parameters) != list(range(len(parameters))):
        raise CubinError(f"the cubin does not give all parameters of kernel '{name}'")
    return threads, cluster, tuple(size for _, size in sorted(parameters.items()))
