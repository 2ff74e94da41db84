"""Packed weights by the words of docs/cuda-packing.md, element by element: no code of the back end.

A packed word is named by its place; for each the statement says which elements of which source it
is. Places are computed as whole arrays, one index for each dim of the packed weight.
"""

import re
import struct

import numpy as np


def reference(weight, tensors):
    """The words of ``weight``, a dict as it stands in manifest.json, of float32 ``tensors``."""
    given = [np.asarray(tensors[name]) for name in weight["sources"]]
    if weight["codes"]:
        given = [of.astype(np.float64) for of in given]
    if not weight["layers"]:
        return _layer(weight, given)
    return np.stack([_layer(weight, [t[n] for t in given]) for n in range(weight["layers"])])


def _layer(weight, sources):
    if weight["codes"]:
        return coded(weight, sources)
    if weight["fragments"]:
        *lead, groups, blocks, _, _ = weight["shape"]
        logical = [*lead, 16 * groups, 16 * blocks]
    else:
        logical = weight["shape"]
    places = np.meshgrid(*map(np.arange, logical), indexing="ij", sparse=True)
    values = STATED[weight["pack"]](weight, sources, places)
    rounded = (to_f16 if weight["dtype"] == "f16" else to_bf16)(np.broadcast_to(values, logical))
    return fragments(rounded).reshape(weight["shape"]) if weight["fragments"] else rounded


def fragments(matrix):
    """Lane 4 g + q of a block has 8 words: of word k the row is g + 8 (k div 2 mod 2), the column
    4 q + 2 (k div 4) + k mod 2."""
    *lead, rows, width = matrix.shape
    lane, word = np.arange(32)[:, None], np.arange(8)[None]
    row = lane // 4 + 8 * (word // 2 % 2)
    column = 4 * (lane % 4) + 2 * (word // 4) + word % 2
    blocks = matrix.reshape(*lead, rows // 16, 16, width // 16, 16).swapaxes(-3, -2)
    return blocks[..., row, column]


def element(source, *index):
    """Elements of a source; 0 where an index is outside of it."""
    inside = np.array(True)
    for axis, at in enumerate(index):
        inside = inside & (np.asarray(at) >= 0) & (np.asarray(at) < source.shape[axis])
    found = source[tuple(np.where(inside, at, 0) for at in index)]
    return np.where(inside, found, 0)


def paired(weight, place, lane, count):
    """The lane of the source that lane ``lane`` of a head of ``count`` is."""
    if weight["sources"][place] not in weight["paired"]:
        return lane
    run = weight["run"] or count
    return lane // run * run + lane % run // 2 + lane % 2 * (run // 2)


def plain(weight, sources, places):
    *lead, last = places
    (source,) = sources
    return element(source, *lead, paired(weight, 0, last, source.shape[-1]))


def transposed(weight, sources, places):
    return element(sources[0], *places[::-1])


def gated(weight, sources, places):
    row, *column = places
    one, other = (element(source, *column, row // 2) for source in sources)
    return np.where(row % 2, other, one)


def projections(weight, sources, places):
    """Of each key head its queries, its keys, its values."""
    head_of, row, *hidden = places
    head, found, first = sources[0].shape[-1], 0.0, 0
    for place, source in enumerate(sources):
        heads = source.shape[-2] if source.ndim == sources[0].ndim else 1
        each = heads // weight["shape"][0]
        at = row - first
        own = (at >= 0) & (at < each * head)
        lane = paired(weight, place, at % head, head)
        number = [head_of * each + at // head] if source.ndim == sources[0].ndim else []
        found = np.where(own, element(source, *hidden, *number, lane), found)
        first += each * head
    return found


def output(weight, sources, places):
    row, attended = places
    heads, head, _ = sources[0].shape
    found = element(sources[0], attended // head, attended % head, row)
    return np.where(attended < heads * head, found, 0)


def tasks(weight, sources, places):
    """Of a matrix in fragments group n has ``rows`` rows of each source, in turn."""
    found, lanes = 0.0, list(places)
    for place, (source, how) in enumerate(zip(sources, weight["gathered"], strict=True)):
        at, own = list(lanes), True
        if weight["fragments"]:
            slot, count = lanes[-2] % 16, len(sources)
            own = (slot < weight["rows"] * count) & (slot % count == place)
            at[-2] = lanes[-2] // 16 * weight["rows"] + slot // count
            own = own & (lanes[-1] < how["extents"][-1])
        known = dict(zip(how["lanes"], at, strict=True))
        index = [stated(text, known) for text in how["element"]]
        found = np.where(own, element(source, *index), found)
    return found


def stated(text, lanes):
    """An expression of a manifest: whole numbers, lanes, +, -, *, floor(a/b), mod."""
    spelled = re.sub(r"floor\(([^/]*)/(\d+)\)", r"((\1)//\2)", text)
    assert "floor" not in spelled
    return eval(spelled.replace("mod", "%"), {"__builtins__": {}}, lanes)


# What there is once for a group of columns, as its bytes; the columns of a group; bits of a code.
OF_GROUPS = {
    "q4_0": ("e", 32, 4),
    "q4_1": ("ee", 32, 4),
    "q8_0": ("e", 32, 8),
    **{f"int4_{n}": ("ef", n, 4) for n in (32, 64, 128)},
    **{f"e4m3_{n}": ("f", n, 8) for n in (16, 32, 64, 128)},
}


def coded(weight, sources):
    """Blocks of 16 rows and a group of columns, byte by byte."""
    numbers, group, bits = OF_GROUPS[weight["codes"]]
    *lead, groups, blocks, _ = weight["shape"]
    count = len(sources) // (1 + len(numbers))
    found = []
    for part in range(1 + len(numbers)):
        own = slice(part * count, (part + 1) * count)
        width = blocks * group if part == 0 else blocks
        places = np.meshgrid(
            *map(np.arange, [*lead, 16 * groups, width]), indexing="ij", sparse=True
        )
        here = {**weight, "fragments": True, "gathered": weight["gathered"][own]}
        values = tasks(here, sources[own], places)
        found.append(np.broadcast_to(values, [*lead, 16 * groups, width]))
    packed = []
    for index in np.ndindex(*lead, groups, blocks):
        *matrix, row, block = index
        rows = slice(16 * row, 16 * row + 16)
        codes = found[0][(*matrix, rows, slice(block * group, (block + 1) * group))]
        data = b"".join(of_lanes(codes, bits, weight["codes"], weight["dtype"]))
        for kind, values in zip(numbers, found[1:], strict=True):
            data += struct.pack(f"<16{kind}", *values[(*matrix, rows, block)])
        packed.append(np.frombuffer(data, np.uint16))
    return np.stack(packed).reshape(weight["shape"])


def of_lanes(codes, bits, form, dtype):
    """The words of lanes: as many as four of one lane lie together."""
    fragments = codes.shape[1] // 16
    words = {}
    for fragment, lane in np.ndindex(fragments, 32):
        g, q = lane // 4, lane % 4
        pairs = [
            [codes[g + 8 * (i % 2), 16 * fragment + 4 * q + 2 * (i // 2) + k] for k in range(2)]
            for i in range(4)
        ]
        if bits == 4:
            word = sum(int(pairs[i][k]) << 4 * i + 16 * k for i in range(4) for k in range(2))
            words.setdefault(lane, []).append(word)
        elif not form.startswith("e4m3"):
            for a, b in (pairs[:2], pairs[2:]):
                order = [a[0], b[0], a[1], b[1]]
                words.setdefault(lane, []).append(
                    sum(int(code) << 8 * n for n, code in enumerate(order))
                )
        else:
            for a, b in (pairs[:2], pairs[2:]):
                pairs_of_word = [[e4m3(code) for code in pair] for pair in (a, b)]
                words.setdefault(lane, []).append(of_floats(*pairs_of_word, SHIFTS[dtype]))
    together = min(len(words[0]), 4)
    for first in range(0, len(words[0]), together):
        for lane in range(32):
            yield struct.pack(f"<{together}I", *words[lane][first : first + together])


SHIFTS = {"f16": (7, 8, 1), "bf16": (4, 4, -4)}
"""By type how far the last bit of a code is from that of a half, and the two shifts."""


def of_floats(first, second, shifts):
    """The word that has the bits of the second codes in their places, and for which those of the
    first codes differ in two shifts of it: from the highest bit, of which one shift knows nothing,
    every further bit of the word that is asked for follows."""
    last, *both = shifts
    places = [16 * half + (15 if bit == 7 else last + bit) for half in (0, 1) for bit in range(8)]
    found = {at: second[at // 16] >> n % 8 & 1 for n, at in enumerate(places)}
    wanted = {at: first[at // 16] >> n % 8 & 1 for n, at in enumerate(places)}
    for _ in places:
        for at, bit in wanted.items():
            here = [at - by for by in both if 0 <= at - by < 32]
            unknown = [one for one in here if one not in found]
            if len(unknown) == 1:
                known = sum(found[one] for one in here if one in found)
                found[unknown[0]] = (bit + known) % 2
    assert len(found) == 32
    return sum(bit << at for at, bit in found.items())


def e4m3(number):
    """The code of a number, whose exponent and fraction are those of a 16-bit float."""
    (bits,) = struct.unpack("<H", struct.pack("<e", number / 256))
    return bits >> 8 & 128 | bits >> 7 & 127


STATED = {
    "plain": plain,
    "transposed": transposed,
    "gated": gated,
    "projections": projections,
    "output": output,
    "tasks": tasks,
}


def to_f16(values):
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


def to_bf16(values):
    """The nearer of the two neighbours, of equally near ones the even one; infinity as it is."""
    down = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
    with np.errstate(invalid="ignore"):
        below, above = (
            (word.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            for word in (down, down + 1)
        )
        to_below, to_above = abs(values - below), abs(above - values)
    up = (to_above < to_below) | ((to_above == to_below) & (down % 2 == 1))
    return (down + up).astype(np.uint16)
