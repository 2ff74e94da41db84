"""From flags to the request that they spell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from meshc.driver import CompileRequest, LoadedModel, find_weights, formats_to_keep
from meshc.driver.weights import AS_STORED, IF_POSSIBLE
from meshc.frontend.chat import Conversation, read_conversation
from meshc.support.diagnostics import fail


def request_of(options: argparse.Namespace) -> CompileRequest:
    """The request of a command's flags; what it has no flag for has its default."""
    names = {field.name for field in fields(CompileRequest)}
    given = {name: value for name, value in vars(options).items() if name in names}
    for name in ("batch", "mesh", "phase"):
        if given.get(name, "") is None:
            del given[name]
    given.pop("keep_quantised", None)
    return CompileRequest(**given | {"algo": tuple(options.algo)})


def check_compiled(options: argparse.Namespace, target: str, given: Sequence[str]) -> None:
    """Fail with ``bad-argument`` where one of the flags that are ``given`` says what to compile, or
    ``--target`` another one than that of a program that is compiled."""
    named = [flag for flag in given if flag != "--target"]
    if options.target not in ("python", target):
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
    replace(request, keep_quantised=(asked,)).check()
    named = asked not in (AS_STORED, IF_POSSIBLE)
    place = None if named else find_weights(loaded.name, loaded.weights, options.weights)
    target = "cuda" if (request.kernels if on_gpu is None else on_gpu) else ""
    formats = formats_to_keep(asked, place, loaded.config, request.layers, target)
    return replace(request, keep_quantised=formats)
