"""A compiled language model as a model of transformers: ``forward`` and ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from typing import Any, NoReturn

import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from meshc.backends import cuda
from meshc.driver import Executable
from meshc.support.diagnostics import fail
from meshc.torch.caches import ProgramCache
from meshc.torch.operator import NO_TOKEN, LoadedProgram, step

CACHE = next(
    each.name
    for each in fields(CausalLMOutputWithPast)
    if each.name in ("cache", "past_key_values")
)
"""What this release of transformers calls caches."""
_FOLLOWS = "cache_position"
"""An argument that older releases give, which says what the caches say."""


class CompiledModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A causal language model of transformers whose steps are a compiled program.

    ``forward`` maps tokens to logits over a :class:`ProgramCache`; ``generate`` is that of
    transformers, with as many rows (prompts, times their beams or answers) as the program has
    requests. There are no parameters: weights are in the program. ``program_key`` is what
    ``meshc::step`` knows it by, ``program`` says what it has (its ``batch`` and ``capacity`` among
    it). :meth:`close` gives a GPU back.
    """

    main_input_name = "input_ids"
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _is_stateful = False

    def __init__(
        self,
        executable: Executable,
        name: str,
        layers: int | None,
        config: Any,
        generation_config: Any,
    ) -> None:
        """``executable`` holds a program for CUDA of one GPU, of the model called ``name`` or its
        first ``layers``; ``config`` and ``generation_config`` are those of transformers, the latter
        may be None.
        Raises ``no-tokens`` and ``run-refused`` for other programs."""
        super().__init__(deepcopy(config))
        host = executable.host
        if not isinstance(host, cuda.LanguageModel) or not host.program.alone:
            fail("run-refused", f"'{name}' is no program for one GPU")
        if layers is not None:
            self.config.get_text_config(decoder=True).num_hidden_layers = layers
        if generation_config is not None:
            self.generation_config = deepcopy(generation_config)
        self.program = host.program
        self._executable = executable
        self._loaded = LoadedProgram(name, host)
        self.program_key = self._loaded.key
        gpu = executable.device
        self._place = torch.device("cpu") if gpu is None else torch.device("cuda", gpu.index)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the kernels run."""
        return self._place

    @property
    def dtype(self) -> torch.dtype:
        """The type of logits."""
        return torch.float32

    def new_cache(self) -> ProgramCache:
        """Empty caches, for :meth:`forward` and ``generate``; without any these make their own."""
        config = self.config.get_text_config(decoder=True)
        return ProgramCache(self.program, config.num_hidden_layers, self.device)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: ProgramCache | None = None,
        cache: ProgramCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """A ``CausalLMOutputWithPast`` with logits f32 [rows, columns, vocabulary] behind
        ``input_ids`` int64 [rows, columns], of the last ``logits_to_keep`` columns or of all for 0;
        or a tuple of these and the caches unless ``return_dict``.

        ``attention_mask`` [rows, cached columns and these] is 0 for padding, which is not read:
        its logits are 0, and positions are counted without it. ``cache`` (in older releases of
        transformers ``past_key_values``) has what was read before, and what is read now behind it.
        All logits of a prompt take a step of the program for each of its tokens.

        Raises MeshcError ``run-refused`` for what a program does not compute, for caches that are
        not its own, for other positions, and for more tokens than there is room for.
        """
        _refuse_others(others)
        held = cache if cache is not None else past_key_values
        if held is None:
            held = self.new_cache()
        if not isinstance(held, ProgramCache):
            fail(
                "run-refused",
                f"a compiled program keeps its own caches, and was given a {type(held).__name__}",
                help="model.new_cache() makes some; without any, forward does",
            )
        if input_ids is None or input_ids.ndim != 2:
            fail("run-refused", "a compiled program reads input_ids [rows, columns]")
        mask = _mask(held, input_ids, attention_mask)
        seen = held.extended(mask)
        if bool((input_ids.cpu()[mask] < 0).any()):
            _refuse(f"{int(input_ids.min())} is no token id below {self.program.vocabulary}")
        if position_ids is not None:
            _check_positions(position_ids, mask, seen)
        tokens = torch.where(mask, input_ids.cpu(), NO_TOKEN).to(self.device)
        kept = _kept(logits_to_keep, input_ids.shape[1])
        counts = seen.sum(1) - mask.sum(1)
        logits = step(tokens, counts, held.tensors, self.program_key, kept)
        held.seen = seen
        found = CausalLMOutputWithPast(
            logits=logits, **{CACHE: None if use_cache is False else held}
        )
        return found.to_tuple() if return_dict is False else found

    def close(self) -> None:
        """Give a GPU back. The model cannot be used any more."""
        self._executable.close()

    def save_pretrained(self, *given: Any, **named: Any) -> NoReturn:
        """Refused: a compiled program has no weights to save."""
        _refuse("a compiled program is no checkpoint: save the model that it was compiled of")

    @classmethod
    def from_pretrained(cls, *given: Any, **named: Any) -> NoReturn:
        """Refused: :func:`meshc.torch.compile` makes such models."""
        fail(
            "run-refused",
            "weights are compiled, not loaded into a CompiledModel",
            help="meshc.torch.compile(model) takes the model, or its directory",
        )

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *others: Any, **named: Any
    ) -> None:
        """What ``generate`` begins with: the caches that it was given, or new ones."""
        if generation_config.cache_implementation is not None:
            _refuse("a compiled program keeps its own caches, so there is no cache_implementation")
        given = model_kwargs.get(CACHE)
        if isinstance(given, ProgramCache):
            given._is_user_defined = True  # which is what transformers asks
        elif given is None and generation_config.use_cache is not False:
            model_kwargs[CACHE] = self.new_cache()

    def _apply(self, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What ``to`` and its like do: a program stays where it was loaded, as it was compiled."""
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        changed = change(probe)
        if (changed.device, changed.dtype) != (probe.device, probe.dtype):
            _refuse(f"a compiled program stays on {self.device} and gives {self.dtype}")
        return self


def _refuse(words: str) -> NoReturn:
    fail("run-refused", words)


def _refuse_others(others: dict[str, Any]) -> None:
    """Raise ``run-refused`` for arguments of ``forward`` that would change what it gives."""
    asked = [
        name
        for name, value in others.items()
        if name != _FOLLOWS and value is not None and value is not False
    ]
    if asked:
        fail(
            "run-refused",
            f"a compiled program computes logits of tokens alone, not what '{asked[0]}' asks for",
        )


def _mask(
    held: ProgramCache, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Which of ``input_ids`` are tokens, [rows, columns] on the CPU."""
    rows, columns = input_ids.shape
    before = held.get_seq_length()
    if attention_mask is None:
        if not bool(held.seen.all()):
            _refuse("without attention_mask columns that were padding would be read now")
        return torch.ones((rows, columns), dtype=torch.bool)
    if attention_mask.shape != (rows, before + columns):
        wanted = f"[{rows}, {before + columns}]"
        _refuse(f"attention_mask is {list(attention_mask.shape)}, and the tokens make it {wanted}")
    mask = attention_mask.cpu() != 0
    if before and not torch.equal(mask[:, :before], held.seen[: len(mask)]):
        _refuse("attention_mask says other than before which columns are padding")
    return mask[:, before:]


def _check_positions(position_ids: torch.Tensor, mask: torch.Tensor, seen: torch.Tensor) -> None:
    """Raise ``run-refused`` unless tokens are counted from 0 on in each row."""
    columns = mask.shape[1]
    counted = (seen.long().cumsum(1) - 1)[:, -columns:]
    given = position_ids.cpu()
    fits = given.ndim == 2 and given.shape[1] == columns and len(given) in (1, len(mask))
    if not fits or not bool((given.expand_as(counted) == counted)[mask].all()):
        _refuse("position_ids do not count the tokens of each row from 0 on")


def _kept(logits_to_keep: int | torch.Tensor, columns: int) -> int:
    if not isinstance(logits_to_keep, int):
        _refuse("logits_to_keep is a number of columns from the last one on")
    return columns if not 0 < logits_to_keep < columns else logits_to_keep
