"""The ``quantization_config`` of a Hugging Face ``config.json``, read strictly.

Sources: ``AwqConfig``, ``GPTQConfig``, ``FineGrainedFP8Config``, ``FbgemmFp8Config`` and
``Mxfp4Config`` in Hugging Face transformers, ``BaseQuantizeConfig`` in AutoGPTQ, the weights page
of DeepSeek-V3, and the ``compressed-tensors`` format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.checkpoints.fields import Fields, brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import Diagnostics

QUANTIZATION_KEY = "quantization_config"
_CONFIG_LIMIT_BYTES = 1 << 20
_GROUPS = (16, 32, 64, 128, 256, 512, 1024)
_HELP = (
    "use a checkpoint of AWQ or GPTQ with 4 bits, of fp8 (e4m3) with scales, of experts in MXFP4, "
    "or an unquantised one"
)


@dataclass(frozen=True)
class Awq:
    """AWQ of version ``gemm``: 4 bits, a scale and a zero point for ``group`` inputs of an output;
    0 where a group is all inputs."""

    group: int


@dataclass(frozen=True)
class Gptq:
    """GPTQ of 4 bits in groups as of `Awq`. Zero points are those stored and ``added``; with
    ``symmetric`` all are 8. With ``reordered`` a tensor says the group of each input."""

    group: int
    added: int
    symmetric: bool
    reordered: bool


@dataclass(frozen=True)
class Fp8:
    """Elements in e4m3 with a scale of a tensor, of an output, or of blocks [outputs, inputs]."""

    block: tuple[int, int] | None


@dataclass(frozen=True)
class Mxfp4:
    """Experts whose elements of 4 bits (e2m1) have a power of two for 32 inputs."""


OfMatrices = Awq | Gptq | Fp8
Quantization = OfMatrices | Mxfp4


def quantization_beside(config: Path) -> Quantization | None:
    """How the weights beside the ``config.json`` at ``config`` are quantised, None if they are not.

    Errors: ``checkpoint-unreadable``, ``json-invalid``, ``config-unsupported``.
    """
    text = read_json_object(config, _CONFIG_LIMIT_BYTES, "model config")
    found = Diagnostics()
    fields = Fields(text.value, text.source.name, found, lambda key: text.span(key))
    quantization = read_quantization(fields)
    found.raise_errors()
    return quantization


def read_quantization(fields: Fields) -> Quantization | None:
    """What ``quantization_config`` says, None where there is none; what is not known is an error,
    and that inputs would be quantised as well a remark."""
    given = fields.values.get(QUANTIZATION_KEY)
    if given is None or given == {}:
        return None
    if not isinstance(given, dict):
        fields.reject_value(QUANTIZATION_KEY, "an object is wanted")
        return None
    method = given.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        known = ", ".join(_READERS)
        _refuse(fields, f"'{QUANTIZATION_KEY}' {brief(method)} is not supported ({known} are)")
        return None
    return reader(_Table(fields, given))


def _refuse(fields: Fields, message: str) -> None:
    fields.reject("config-unsupported", QUANTIZATION_KEY, message, _HELP)


@dataclass(frozen=True)
class _Table:
    """The object, or one inside it, of which each key must be known."""

    fields: Fields
    values: Mapping[str, object]

    def only(self, key: str, *wanted: object, absent: bool = True) -> object:
        """The value of ``key``, one of ``wanted``; the first of them where it may be absent."""
        value = self.values.get(key)
        if value is None and absent:
            return wanted[0]
        if not any(value == known and type(value) is type(known) for known in wanted):
            shown = " or ".join(brief(known) for known in wanted)
            _refuse(self.fields, f"'{key}' of the quantisation is {brief(value)}; {shown} is read")
            return wanted[0]
        return value

    def group(self) -> int:
        """Inputs of a group, 0 for all."""
        value = self.only("group_size", -1, *_GROUPS, absent=False)
        return 0 if value == -1 else int(str(value))

    def check_known(self, *known: str) -> None:
        """Refuse keys that are not ``known``: they could change what weights mean."""
        for key, value in self.values.items():
            if key not in known and value not in (None, False, [], {}):
                _refuse(
                    self.fields, f"'{key[:60]}' of the quantisation = {brief(value)} is not known"
                )

    def remark_cache(self, *keys: str) -> None:
        """Say that cached keys and values are not rounded, where one of ``keys`` asks for that."""
        if any(self.values.get(key) is not None for key in keys):
            self.fields.diagnostics.remark(
                "quantised-inputs",
                "the checkpoint has scales for a cache in fp8; meshc quantises weights alone",
                self.fields.span(QUANTIZATION_KEY),
            )

    def remark_inputs(self) -> None:
        """Say that inputs of products are not rounded."""
        self.fields.diagnostics.remark(
            "quantised-inputs",
            "the checkpoint asks for inputs of products in fp8; meshc quantises weights alone",
            self.fields.span(QUANTIZATION_KEY),
        )


# Which modules are quantised is read off the tensors that are there; these keys repeat it.
_MODULES = ("quant_method", "modules_to_not_convert")

# How codes of 4 bits were searched for, by AutoRound and by others, and on which data; who wrote
# the file; and by which kernels others multiply.
_SEARCH = (
    "amp", "autoround_version", "batch_size", "block_name_to_quantize", "damp_auto_increment",
    "damp_percent", "dataset", "enable_alg_ext", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "enable_torch_compile", "gradient_accumulate_steps", "iters",
    "low_cpu_mem_usage", "low_gpu_mem_usage", "lr", "lr_scheduler", "max_input_length", "meta",
    "minmax_lr", "model_dtype", "model_seqlen", "momentum", "not_use_best_mse", "nsamples",
    "provider", "quant_block_list", "quantizer", "sampler", "scale_dtype", "seed", "seqlen",
    "static_groups", "super_bits", "super_group_size", "to_quant_block_names", "tokenizer",
    "train_bs", "true_sequential", "use_auto_mapping",
    "backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "pack_impl",
    "use_exllama", "disable_exllama", "use_cuda_fp16",
)  # fmt: skip


def _check_codes(table: _Table) -> None:
    """Refuse codes that are no integers, and inputs of products that would be rounded as well."""
    table.only("bits", 4, absent=False)
    table.only("data_type", "int")
    if table.values.get("act_bits") not in (None, 16, 32):
        table.remark_inputs()


_CODES = ("bits", "group_size", "data_type", "act_bits", "act_data_type", "act_dynamic",
          "act_group_size", "act_sym")  # fmt: skip


def _awq(table: _Table) -> Awq:
    _check_codes(table)
    for key in ("version", "format"):  # the newer name of the older key
        table.only(key, "gemm")
    table.only("zero_point", True)
    table.check_known(*_MODULES, *_CODES, *_SEARCH, "version", "format", "zero_point")
    return Awq(table.group())


_GPTQ_INERT = (
    *_SEARCH, "act_group_aware", "cache_block_outputs", "fail_safe", "failsafe", "gptaq",
    "gptaq_alpha", "hyb_act", "is_marlin_format", "lm_head", "mock_quantization",
    "model_file_base_name", "model_name_or_path", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "mse", "offload_to_disk", "offload_to_disk_path",
    "pad_token_id", "v2", "v2_alpha", "v2_memory_device",
)  # fmt: skip


def _gptq(table: _Table) -> Gptq:
    _check_codes(table)
    table.only("pack_dtype", "int32")
    table.only("is_marlin_format", False)
    table.check_known(
        *_MODULES, *_CODES, "desc_act", "sym", "checkpoint_format", "format", "pack_dtype",
        *_GPTQ_INERT,
    )  # fmt: skip
    # The newer name of a key beside the older one.
    key = "checkpoint_format" if table.values.get("checkpoint_format") else "format"
    older = table.only(key, "gptq", "gptq_v2") == "gptq"
    symmetric, reordered = (table.only(key, False, True) is True for key in ("sym", "desc_act"))
    return Gptq(table.group(), int(older), symmetric, reordered)


def _auto_round(table: _Table) -> Awq | Gptq:
    """Codes of AutoRound in its own form, which packs them as GPTQ or as AWQ does."""
    packing = str(table.values.get("packing_format", "auto_round:auto_gptq"))
    kinds = {"auto_round:auto_gptq": 1, "auto_round:gptqmodel": 0, "auto_round": 0}
    _check_codes(table)
    symmetric = table.only("sym", True, False) is True
    known = (*_MODULES, *_CODES, *_SEARCH, "packing_format", "sym")
    if packing == "auto_round:auto_awq":
        table.check_known(*known, "zero_point", "version")
        return Awq(table.group())
    table.only("packing_format", *kinds)
    table.check_known(*known, "desc_act")
    table.only("desc_act", False)
    return Gptq(table.group(), kinds.get(packing, 1), symmetric, False)


_CACHE = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_method")


def _fp8(table: _Table) -> Fp8:
    table.only("fmt", "e4m3", "float8_e4m3fn")
    table.only("activation_scheme", "dynamic", "static")
    table.check_known(
        *_MODULES, *_CACHE, "fmt", "activation_scheme", "weight_block_size", "ignored_layers",
        "scale_fmt", "dequantize",
    )  # fmt: skip
    table.remark_inputs()
    table.remark_cache(*_CACHE)
    return Fp8(_block(table, "weight_block_size"))


def _fbgemm(table: _Table) -> Fp8:
    table.check_known(*_MODULES, "activation_scale_ub")
    table.remark_inputs()
    return Fp8(None)


def _compressed(table: _Table) -> Fp8 | None:
    table.only("format", "float-quantized", absent=False)
    table.only("quantization_status", "compressed", "frozen")
    table.check_known(
        *_MODULES, "format", "quantization_status", "ignore", "config_groups", "version",
        "global_compression_ratio", *_CACHE, "sparsity_config", "transform_config",
    )  # fmt: skip
    table.remark_cache(*_CACHE)
    sparsity = table.values.get("sparsity_config")
    # Zeros that are stored like other weights, which the package passes over as well.
    if not isinstance(sparsity, dict) or sparsity.get("format") != "dense":
        table.only("sparsity_config", None, {})
    table.only("transform_config", None, {})
    groups = table.values.get("config_groups")
    group = next(iter(groups.values())) if isinstance(groups, dict) and len(groups) == 1 else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        _refuse(table.fields, "'config_groups' of the quantisation is not one group with weights")
        return None
    own = _Table(table.fields, group)
    own.only("targets", ["Linear"], absent=False)
    own.only("format", "float-quantized")
    own.check_known("targets", "weights", "input_activations", "format")
    if group.get("input_activations") is not None:
        table.remark_inputs()
    numbers = _Table(table.fields, weights)
    numbers.only("num_bits", 8, absent=False)
    numbers.only("type", "float", absent=False)
    numbers.only("symmetric", True)
    strategy = numbers.only("strategy", "tensor", "channel", "block", absent=False)
    numbers.check_known(
        "num_bits", "type", "symmetric", "strategy", "block_structure", "observer",
        "observer_kwargs", "scale_dtype", "zp_dtype",
    )  # fmt: skip
    return Fp8(_block(numbers, "block_structure") if strategy == "block" else None)


def _block(table: _Table, key: str) -> tuple[int, int] | None:
    given = table.values.get(key)
    if given is None:
        return None
    if isinstance(given, list) and len(given) == 2 and all(type(n) is int for n in given):
        rows, columns = given
        if 1 <= rows <= 1 << 16 and 1 <= columns <= 1 << 16:
            return rows, columns
    _refuse(table.fields, f"'{key}' of the quantisation is {brief(given)}, not two sizes")
    return None


def _mxfp4(table: _Table) -> Mxfp4:
    table.check_known(*_MODULES, "dequantize")
    return Mxfp4()


_READERS: dict[str, Callable[[_Table], Quantization | None]] = {
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
}
