r"""How vocabularies of GGUF files cut a text into words, by the names that files have for it.

Each step isolates what a pattern matches and leaves what lies between. Source: the table of
pre-tokenizers in llama.cpp's ``llama-vocab.cpp`` (2026), whose patterns are those of the models'
own tokenizers, but for letters of case: ``[^a-z]`` stands for ``\p{Lu}`` there, so that letters
beyond ASCII count as both.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDINGS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SIGNS, _SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINES, _SPACES = r"\s*[\r\n]+", r"\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGIT, _DIGITS = r"\p{N}", r"\p{N}{1,3}"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_HAN, _KANA = r"\x{4e00}-\x{9fa5}", r"\x{3040}-\x{309f}\x{30a0}-\x{30ff}"
_EAST = r"[\x{0800}-\x{9fa5}\x{ac00}-\x{d7ff}&&[^\s]]+"
_PHRASES = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    r"ὐ-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭ"
    "ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


def _words(*parts: str) -> str:
    return "|".join(parts)


def _by_case(ending: str, digits: str) -> str:
    """Words of large letters and small ones behind them, some of which need not be there."""
    large, small = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
    return _words(
        f"{_BEFORE}{large}*{small}+{ending}",
        f"{_BEFORE}{large}+{small}*{ending}",
        digits,
        _SIGNS_AND_SLASHES,
        _LINES,
        _SPACES,
    )


def _usual(digits: str, endings: str = _ENDINGS) -> str:
    return _words(endings, _BEFORE + r"\p{L}+", digits, _SIGNS, _LINES, _SPACES)


_DEEPSEEK_WORDS = _words(
    f"{_ASCII_SIGNS}[A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    _LINES,
    _SPACES,
)

_STEPS: dict[str, tuple[str, ...]] = {
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+",
        _GPT_2,
        r"\p{N}+",
        "[0-9][0-9][0-9]",
    ),
    "gpt-2": (_GPT_2,),
    "smollm": (_DIGIT, _GPT_2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, "[0-9][0-9][0-9]"),
    "llama-bpe": (_usual(_DIGITS),),
    "qwen2": (_usual(_DIGIT),),
    "qwen35": (
        _words(
            _ENDINGS,
            _BEFORE + r"[\p{L}\p{M}]+",
            _DIGIT,
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            _LINES,
            _SPACES,
        ),
    ),
    "minicpm5": (_DIGITS, _usual(r"\p{N}+")),
    "seed-coder": (
        _words(_ENDINGS, _BEFORE + r"\p{L}+", _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES),
    ),
    "bailingmoe": (
        _words(
            "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            _BEFORE + r"\p{L}+",
            _DIGIT,
            _SIGNS,
            r"\s*[\r\n]",
            _SPACES,
        ),
    ),
    "tekken": (_by_case("", _DIGIT),),
    "gpt-4o": (_by_case(f"{_ENDINGS}?", _DIGITS),),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。&&[^\s]]+",
        r"\s+$",
        _EAST,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, _DIGIT),
    "deepseek-v3": (_DIGITS, f"[{_HAN}{_KANA}]+", _DEEPSEEK_WORDS),
    "poro-chat": (_PHRASES,),
    "viking": (_PHRASES, _DIGIT),
}
_ALSO: dict[str, tuple[str, ...]] = {
    "gpt-2": (
        *("a.x-4.0", "exaone4", "gigachat", "granite-docling", "jais", "jina-de", "jina-es"),
        *("jina-v2-de", "jina-v2-es", "mellum", "modern-bert", "mpt", "olmo", "phi-2", "trillion"),
    ),
    "smollm": (
        *("codeshell", "command-r", "exaone", "mellum2", "minerva-7b", "refact", "starcoder"),
    ),
    "llama-bpe": (
        *("chatglm-bpe", "dbrx", "falcon-h1", "falcon3", "glm4", "jina-v5-nano", "lfm2"),
        *("llama-v3", "llama3", "midm-2.0", "pixtral", "smaug-bpe"),
    ),
    "qwen2": (
        *("deepseek-r1-qwen", "f2llmv2", "grok-2", "hunyuan", "kormo", "megrez", "solar-open"),
        "stablelm2",
    ),
    "bailingmoe": ("bailingmoe2", "llada-moe"),
    "gpt-4o": ("kanana2", "llama4", "minimax-m2", "talkie"),
    "deepseek-v3": ("hunyuan-dense", "joyai-llm"),
    "poro-chat": ("bloom", "gpt3-finnish"),
}
_STARTING = (
    *("falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3", "llama3"),
    *("midm-2.0", "pixtral", "tekken"),
)
"""Names of vocabularies whose texts start with bos unless files say otherwise, and in which a word
that is a token stays whole, whatever the merges say."""


@dataclass(frozen=True)
class Cut:
    """How a vocabulary of one name takes texts: the patterns of its ``steps``, and whether words
    that are tokens stay whole."""

    steps: tuple[str, ...]
    whole_words: bool


def starts_with_bos(name: str) -> bool:
    """Whether texts of a vocabulary of this name start with bos where its file does not say."""
    return name in _STARTING


CUTS: dict[str, Cut] = {
    name: Cut(steps, name in (*_STARTING, "minicpm5"))
    for known, steps in _STEPS.items()
    for name in (known, *_ALSO.get(known, ()))
}
"""By the names that files give to them."""
