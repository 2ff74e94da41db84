"""Flags that say what to compile, and the request they make."""

from __future__ import annotations

import argparse

from meshc.driver import CompileRequest


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a compile, with the defaults of :class:`CompileRequest`."""
    plain = CompileRequest()
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--device", default=plain.device, metavar="NAME|FILE.toml", help="default: %(default)s"
    )
    group.add_argument(
        "--mesh",
        default=plain.mesh,
        metavar="WxH",
        help="columns x rows of one region of cores; default: %(default)s",
    )
    group.add_argument(
        "--seq", type=int, metavar="N", help="tokens that the KV cache holds; default: 1024"
    )
    group.add_argument("--layers", type=int, metavar="N", help="compile the first N layers only")
    group.add_argument(
        "--dtype",
        default=plain.dtype,
        metavar="f32|f16|bf16",
        help="of activations and weights on the cores; default: f32 for programs, else the "
        "device's own",
    )
    group.add_argument(
        "--kv",
        default=plain.kv,
        metavar="shift|concat|cyclic",
        help="how the KV cache takes new tokens; default: %(default)s",
    )


def request_of(options: argparse.Namespace) -> CompileRequest:
    """The request that these flags spell."""
    return CompileRequest(
        device=options.device,
        mesh=options.mesh,
        seq=options.seq,
        layers=options.layers,
        dtype=options.dtype,
        kv=options.kv,
    )
