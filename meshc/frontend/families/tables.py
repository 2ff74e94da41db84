"""What the tables of ``config.toml`` and ``tensors.toml`` hold: see ``docs/families.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """A positive whole number at ``key`` of a config, for the ``parameter`` of the model if any.

    An absent key stands for ``default``: a number, a size above it, or a ratio ``"a / b"`` of two;
    a key that is null stands for ``null``, if that is given. Without a default the key is required.
    A number that is no multiple of ``multiple``, is not the size ``equal`` or is more than the size
    ``within`` is refused with ``why``. It is at most what the size ``limit``, or that of its own
    name, may be. With ``less`` the parameter is what is left of the number behind that size. Some
    files have the key ``other`` in the place of ``key``.
    """

    key: str
    other: str = ""
    parameter: str = ""
    default: int | str | None = None
    null: int | str | None = None
    multiple: int = 1
    equal: str = ""
    within: str = ""
    limit: str = ""
    less: str = ""
    why: str = ""


@dataclass(frozen=True)
class Flag:
    """A truth value at ``key``, ``default`` where that is absent; `Size` explains ``parameter``."""

    key: str
    default: bool
    parameter: str = ""


@dataclass(frozen=True)
class Number:
    """A number above 0 and at most ``most`` at ``key``, ``default`` where that is absent, without
    which the key is required; a key that is null stands for ``null``, if that is given."""

    key: str
    most: float
    default: float | None = None
    null: float | None = None


@dataclass(frozen=True)
class Keys:
    """The names that files of a family give to numbers which all models have, the epsilon and the
    activation that absent keys stand for, and activations that are ``meant`` by the name of
    another."""

    eps: str = "rms_norm_eps"
    usual_eps: float = 1e-6
    theta: str = "rope_theta"
    activation: str = "hidden_act"
    usual_activation: str = "silu"
    meant: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        """The keys of a config."""
        return frozenset((self.eps, self.theta, self.activation))


@dataclass(frozen=True)
class Rotary:
    """The part of each head that turns: the share of its lanes at ``key``, or ``default``, gives
    the parameter ``parameter`` of the model, a number of lanes."""

    key: str
    parameter: str
    default: float


@dataclass(frozen=True)
class Windows:
    """Windows in every ``every``-th layer, from the first one on, over as many tokens as
    'sliding_window' says, or ``default``, for the parameter ``parameter`` of the model. A default
    of 0 is no window, and so is null where windows are ``optional``, or a ``switch``, a key, that
    is not true. With ``but``, a parameter of the model, windows are in all layers but every so
    many-th, which the key ``pattern`` says or the list of 'layer_types', else ``every``.

    With ``any_layers`` the model has the parameters ``every``, ``but`` and ``after`` of a softmax,
    of which a list of 'layer_types' gives one. Without it windows are in layers from the number at
    the key ``first`` on, or in every ``every``-th of those before the one at ``below``;
    ``usual_first`` is the number where that key is absent.
    """

    parameter: str
    every: int
    default: int
    optional: bool = False
    but: str = ""
    pattern: str = ""
    switch: str = ""
    any_layers: bool = False
    first: str = ""
    below: str = ""
    usual_first: int = 0


@dataclass(frozen=True)
class LocalRope:
    """The base of RoPE in layers with windows, where it is another: at ``key``, or ``default``, for
    the parameter ``parameter`` of the model. Newer files have the numbers of both kinds of layers
    apart in 'rope_parameters'."""

    key: str
    parameter: str
    default: float


@dataclass(frozen=True)
class SkippedRope:
    """Every how many-th layer turns nothing, for the parameter ``parameter`` of the model: the
    number at ``key``, or ``default``; the key ``list`` has 0 for each such layer and 1 for each
    other in its place."""

    parameter: str
    key: str
    default: int
    list: str


@dataclass(frozen=True)
class Word:
    """One of the texts ``among`` at ``key``, the first where that is absent."""

    key: str
    among: list[str]


@dataclass(frozen=True)
class Refusal:
    """The ``value`` of ``key`` that is refused, or, with ``absent``, that it is not there; with
    ``only`` every value but that one and null.

    ``why`` says what is wrong with the value, ``unsupported`` (with ``help``) what meshc does not
    compute; one of the two is given.
    """

    key: str
    value: bool | float | str | None = None
    only: bool | float | str | list[int] | None = None
    absent: bool = False
    why: str = ""
    unsupported: str = ""
    help: str = ""


@dataclass(frozen=True)
class Experts:
    """Keys of models whose first layers are dense, as many as the key ``dense`` says, or ``first``
    where it is absent; the others, which the parameter ``stage`` counts, have experts, as many as
    the key ``count`` says for the parameter ``parameter``, or ``usual``; none if that is 0 or null.
    Some files have the key ``other`` in the place of ``count``.

    ``own``, ``numbers``, ``switches`` and ``words`` are parameters that only models with experts
    have: whole numbers, numbers, truth values, and texts out of several.
    """

    dense: str
    first: int
    stage: str
    count: str
    parameter: str
    usual: int
    other: str = ""
    own: Mapping[str, Size] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    switches: Mapping[str, Flag] = field(default_factory=dict)
    words: Mapping[str, Word] = field(default_factory=dict)

    def keys(self) -> frozenset[str]:
        """Every key of a config that these tables speak of."""
        found = {self.dense, self.count} | {size.key for size in self.own.values()}
        found |= {self.other} if self.other else set()
        found |= {number.key for number in self.numbers.values()}
        found |= {flag.key for flag in self.switches.values()}
        return frozenset(found | {word.key for word in self.words.values()})

    def parameters(self) -> frozenset[str]:
        """The parameters that they give."""
        named = {*self.own, *self.numbers, *self.switches, *self.words}
        return frozenset(named | {self.stage, self.parameter})


@dataclass(frozen=True)
class Dense:
    """Keys of models with experts whose first layers may have none: those of the list ``listed``
    have none, and of the others every so many-th has, as ``every`` says. The parameter ``stage``
    counts them, and ``width`` is that of their features.
    """

    listed: str
    every: str
    stage: str
    width: Size


@dataclass(frozen=True)
class Tables:
    """What a config of one ``model_type`` of a family says.

    ``sizes`` and ``flags`` are those of every model, by their names in ``ModelConfig``; ``own`` are
    parameters of this family alone that are whole numbers, ``switches`` those that are truth
    values, ``numbers`` those that are others. ``lanes`` are the own parameters whose sum is a
    head's width, where no key gives that. ``windows`` are those that the model computes. ``theta``
    is the base of RoPE where a file gives none; it says how RoPE is scaled if that is
    ``rope_needed``, and whole heads are rotated where it ``rotates_heads``. Files of some have the
    context that they had before it was stretched ``context_beside`` that. ``rotary`` is there where
    part of a head may turn, ``local_rope`` where layers with windows have a base of their own,
    ``skipped_rope`` where some layers turn nothing, ``experts`` or ``dense`` where the first layers
    are of another kind. A text ends with the token ``usual_end`` where
    a file has no key for that. Keys of ``no_effect`` change nothing in the models that are read.
    """

    rope_types: tuple[str, ...]
    sizes: Mapping[str, Size]
    own: Mapping[str, Size]
    flags: Mapping[str, Flag]
    switches: Mapping[str, Flag]
    numbers: Mapping[str, Number]
    refused: tuple[Refusal, ...]
    named: Keys = Keys()
    rotary: Rotary | None = None
    lanes: tuple[str, ...] = ()
    windows: Windows | None = None
    local_rope: LocalRope | None = None
    skipped_rope: SkippedRope | None = None
    theta: float = 10000.0
    rope_needed: bool = False
    rotates_heads: bool = False
    context_beside: bool = False
    experts: Experts | None = None
    dense: Dense | None = None
    usual_end: int | None = None
    no_effect: frozenset[str] = frozenset()

    def keys(self) -> frozenset[str]:
        """Every key of a config that these tables speak of."""
        sizes = (*self.sizes.values(), *self.own.values())
        found = {size.key for size in sizes} | {size.other for size in sizes if size.other}
        found |= {flag.key for flag in (*self.flags.values(), *self.switches.values())}
        found |= {number.key for number in self.numbers.values()}
        found |= {refusal.key for refusal in self.refused}
        found |= self.experts.keys() if self.experts else set()
        dense = self.dense
        found |= {dense.listed, dense.every, dense.width.key} if dense else set()
        found |= self.named.names()
        found |= {self.rotary.key} if self.rotary else set()
        found |= {self.local_rope.key} if self.local_rope else set()
        skipped = self.skipped_rope
        found |= {skipped.key, skipped.list} if skipped else set()
        found |= {self.windows.pattern} if self.windows and self.windows.pattern else set()
        return frozenset(found) | self.no_effect


@dataclass(frozen=True)
class StoredParam:
    """How files store a param of the model.

    ``hf`` and ``gguf`` are its names, with ``{n}`` for the layer; ``gguf`` is missing where GGUF
    files of the family are not read. ``stored`` has a text for each stored axis, rows first,
    that names the dims along it, the outermost first. ``(N | P)`` are
    lanes that lie side by side: the param has those of its own dims, or of alternative ``part``;
    an alternative ``1`` is a single lane. A model with tied embeddings has this param in the place
    of ``tied``.

    In Hugging Face files every element of the dim ``each`` has a stored tensor of its own, with its
    number for ``{each}``, and the param is ``offset`` more than what is stored. GGUF files hold the
    param itself, its dim ``each`` outermost, or the axes ``gguf_stored`` where they are others;
    lanes i and i + n/2 of the dim ``gguf_pairs`` lie at 2i and 2i + 1. Lanes of the dim ``turning``
    are those of queries: where LongRoPE turns some of them and makes these larger, the param is. No
    file has a param that is ``constant``: all of its elements are that number.
    """

    hf: str = ""
    stored: tuple[str, ...] = ()
    gguf: str = ""
    gguf_stored: tuple[str, ...] = ()
    each: str = ""
    part: int | None = None
    gguf_pairs: str = ""
    tied: str = ""
    offset: float = 0.0
    turning: str = ""
    constant: float | None = None

    def gguf_axes(self) -> tuple[str, ...]:
        """The axes of the tensor in a GGUF file, spelled as ``stored``."""
        return self.gguf_stored or (*([self.each] if self.each else []), *self.stored)


@dataclass(frozen=True)
class GgufTables:
    """What the metadata of a GGUF file says, whose general.architecture is ``architecture``. Keys
    in ``tables`` begin with that name.

    Of two families with one architecture the ``routed`` one is that of files with experts. Files do
    not name the ``activation``. ``by_layers`` has parameters that files leave to the number of
    layers, each a size of the model or a ratio of two; ``fixed`` those that all models of the
    architecture have in common. Switches in ``present`` are on where layer 0 has a param, those in
    ``absent`` where it has not. YaRN rounds the pairs between which it blends to whole ones if
    ``yarn_rounds``. A reason in ``refused_because`` is why such files are not read.
    """

    architecture: str
    tables: Tables
    routed: bool = False
    activation: str = "silu"
    by_layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fixed: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    yarn_rounds: bool = True
    refused_because: str = ""

    @property
    def prefix(self) -> str:
        """What keys of the architecture begin with."""
        return f"{self.architecture}."
