"""From flags to the request that they spell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from meshc.backends.request import argument_names, flag_of
from meshc.backends.target import target_named, target_of, usual_target
from meshc.backends.target_options import read_options
from meshc.driver import CompileRequest, LoadedModel, find_weights, formats_to_keep
from meshc.driver.weights import AS_STORED, IF_POSSIBLE
from meshc.frontend.chat import Conversation, read_conversation
from meshc.passes.spec import parse_specs
from meshc.support.diagnostics import fail


def request_of(options: argparse.Namespace) -> CompileRequest:
    """The request of a command's flags; what it has no flag for has its default."""
    names = argument_names() - {"keep_quantised"}
    given = {name: value for name, value in vars(options).items() if name in names}
    found = {name: value for name, value in given.items() if value is not None}
    found |= {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    target, own = _target_and_options(options)
    for name in own:
        if name in found:
            words = f"{flag_of(name)} and an option of --target are one, and one value would count"
            fail("bad-argument", words)
    return CompileRequest(**found | own | {"target": target})


def asked_target(options: argparse.Namespace) -> str:
    """The target of a command's flags: where none is named, the one that is made for the device
    that is. IR of a level is of no target. Raises what :func:`meshc.devices.device` does."""
    return _target_and_options(options)[0]


def _target_and_options(options: argparse.Namespace) -> tuple[str, dict[str, object]]:
    """The same with the options that stand behind the name of the target, as those of a pass do:
    ``NAME{option=value,..}``. Raises ``bad-argument``, ``bad-pipeline``."""
    text = options.target
    if text is None:
        return usual_target(options.device, getattr(options, "compile_to", "")), {}
    if "{" not in text:
        return text, {}
    named = parse_specs(text, "--target")
    if len(named) != 1:
        fail("bad-argument", f"--target names {len(named)} targets, and a program is for one")
    return named[0].name, read_options(target_named(named[0].name).OPTIONS, dict(named[0].options))


def check_compiled(options: argparse.Namespace, target: str, given: Sequence[str]) -> None:
    """Fail with ``bad-argument`` where one of the flags that are ``given`` says what to compile, or
    ``--target`` another one than that of a program that is compiled."""
    named = [flag for flag in given if flag != "--target"]
    if options.target not in (None, target):
        named.insert(0, "--target")
    if named:
        fail(
            "bad-argument",
            f"{named[0]} says what to compile, but '{options.model}' is a program that is compiled",
            help="leave it out, or give it to meshc compile",
        )


def prompts_of(options: argparse.Namespace) -> tuple[str | tuple[int, ...] | Conversation, ...]:
    """What ``meshc run`` continues. Raises ``bad-argument`` for flags that contradict each other,
    and what :func:`read_conversation` does."""
    texts: Sequence[str] = options.prompt or ()
    if options.chat and not texts:
        fail("bad-argument", "--chat makes messages of --prompt, which is not given")
    if options.system is not None and not options.chat:
        fail("bad-argument", "--system is given, but without --chat there are no messages")
    if options.chat:
        return tuple(Conversation.of(text, options.system) for text in texts)
    files: Sequence[str] = options.messages or ()
    return (*texts, *(options.prompt_ids or ()), *(read_conversation(Path(file)) for file in files))


def keeping(
    request: CompileRequest,
    options: argparse.Namespace,
    loaded: LoadedModel,
    on_gpu: bool | None = None,
) -> CompileRequest:
    """``request`` with the weights of ``loaded`` that are to stay quantised, as a flag says: those
    that kernels for CUDA decode ``on_gpu``, if that is not what ``request`` itself says."""
    asked = options.keep_quantised
    if asked is None:
        return request
    request.changed(keep_quantised=(asked,)).check()
    named = asked not in (AS_STORED, IF_POSSIBLE)
    place = None if named else find_weights(loaded.name, loaded.weights, options.weights)
    streamed = target_of(request).streams(request) if on_gpu is None else on_gpu
    formats = formats_to_keep(asked, place, loaded.config, request.layers, streamed)
    return request.changed(keep_quantised=formats)
