"""A small transformer at graph level: two layers, grouped heads, a KV cache, a gated MLP."""

from interp_tile_texts import module_of

LAYER = """
        %n1 = graph.rms_norm %x, %g1 {dim = E, eps = 1e-05} : f32[L, E]
        %q, %k, %v = graph.matmul %n1, %wq, %wk, %wv {contract = [E]}
          : f32[L, H, D], f32[L, G, D], f32[L, G, D]
        %qr = graph.rope %q {dim = D, rows = L, theta = 100.0, style = STYLE} : f32[L, H, D]
        %kr = graph.rope %k {dim = D, rows = L, theta = 100.0, style = STYLE} : f32[L, G, D]
        %kc = graph.append %kp, %kr {dim = S, rows = L} : f32[S, G, D]
        %vc = graph.append %vp, %v {dim = S, rows = L} : f32[S, G, D]
        %s = graph.matmul %qr, %kc {contract = [D], group = [H, G]} : f32[L, H, S]
        %t = graph.scale %s {factor = 0.5} : f32[L, H, S]
        %p = graph.softmax %t {dim = S, mask = causal, rows = L} : f32[L, H, S]
        %o = graph.matmul %p, %vc {contract = [S], group = [H, G]} : f32[L, H, D]
        %a = graph.matmul %o, %wo {contract = [H, D]} : f32[L, E]
        %x1 = graph.add %x, %a : f32[L, E]
        %n2 = graph.rms_norm %x1, %g2 {dim = E, eps = 1e-05} : f32[L, E]
        %gate, %up = graph.matmul %n2, %wg, %wu {contract = [E]} : f32[L, F], f32[L, F]
        %act = graph.silu %gate : f32[L, F]
        %h = graph.mul %act, %up : f32[L, F]
        %d = graph.matmul %h, %wd {contract = [F]} : f32[L, E]
        %x2 = graph.add %x1, %d : f32[L, E]
        graph.yield %x2, %kc, %vc"""


def batched(rows, requests, **options):
    """The model for several requests: decode takes one row of each, with a dim B; more rows are the
    prompt of the request that the scalar ``request`` names."""
    text = model_text(rows, **options)
    for dims in ("L", "S"):
        text = text.replace(f"f32[{dims},", f"f32[B, {dims},")
    text = text.replace("f32[N, S,", "f32[N, B, S,")
    text = text.replace("dims ", f"dims B = {requests if rows == 1 else 1}, ", 1)
    if rows > 1:
        text = text.replace(f"len = 1..{rows}", f"len = 1..{rows}, request = 0..{requests - 1}")
    return module_of(text)


def transformer(rows, **options):
    """The model for ``rows`` rows at a time: 1 is decode (scalar ``pos``), more is prefill."""
    return module_of(model_text(rows, **options))


def model_text(
    rows, capacity=11, layers=2, vocabulary=13, style="interleaved", projected=False, **dims
):
    """What :func:`transformer` parses. ``projected`` heads come from one more product, so that a
    vector moves from one axis to the other before them."""
    extents = {"E": 10, "H": 6, "G": 2, "D": 4, "F": 14, **dims}
    extents = {"N": layers, "L": rows, "S": capacity, "V": vocabulary, **extents}
    scalar = f"pos = 0..{capacity - 1}" if rows == 1 else f"len = 1..{rows}"
    weights = {
        "g1": "E",
        "wq": "E, H, D",
        "wk": "E, G, D",
        "wv": "E, G, D",
        "wo": "H, D, E",
        "g2": "E",
        "wg": "E, F",
        "wu": "E, F",
        "wd": "F, E",
    }
    layer = LAYER.replace("STYLE", style)
    if projected:
        extents["P"] = 9
        weights = {"wp": "E, P"} | weights | {n: f"P, {weights[n][3:]}" for n in ("wq", "wk", "wv")}
        made = "%p0 = graph.matmul %n1, %wp {contract = [E]} : f32[L, P]\n        %q, %k, %v"
        layer = layer.replace("%q, %k, %v", made, 1)
        layer = layer.replace(
            "%n1, %wq, %wk, %wv {contract = [E]}", "%p0, %wq, %wk, %wv {contract = [P]}"
        )
    params = ", ".join(f"weight %{n}s: f32[N, {d}]" for n, d in weights.items())
    stacks = ", ".join(f"%{n}s" for n in weights)
    slices = ", ".join(f"%{n}: f32[{d}]" for n, d in weights.items())
    return f"""module @model level(graph) holds(transpose_free) {{
      dims {", ".join(f"{n} = {e}" for n, e in extents.items())}
      scalars {scalar}
      func @model(in %x0: f32[L, E], {params}, weight %gf: f32[E], weight %wl: f32[E, V],
          state %ks: f32[N, S, G, D], state %vs: f32[N, S, G, D])
          -> (f32[L, V], f32[N, S, G, D], f32[N, S, G, D]) {{
        %y, %kn, %vn = graph.repeat %x0, {stacks}, %ks, %vs {{dim = N}}
          : f32[L, E], f32[N, S, G, D], f32[N, S, G, D]
          (%x: f32[L, E], {slices}, %kp: f32[S, G, D], %vp: f32[S, G, D]) {{{layer}
        }}
        %z = graph.rms_norm %y, %gf {{dim = E, eps = 1e-05}} : f32[L, E]
        %logits = graph.matmul %z, %wl {{contract = [E]}} : f32[L, V]
        graph.return %logits, %kn, %vn
      }}
    }}"""
