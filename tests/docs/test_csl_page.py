"""``docs/csl.md`` shows what is emitted."""

from pages import ROOT, blocks

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics


def test_the_decode_program_on_the_page_is_the_emitted_one():
    (shown,) = blocks("docs/csl.md", "csl")
    report = Diagnostics()
    loaded = load_any(str(ROOT / "examples" / "tiny_llama.mesh"), report)
    asked = CompileRequest(
        target="csl", device="wse3", mesh="4x4", seq=32, dtype="f16", phase="decode"
    )
    emitted = compile_loaded(loaded, asked, (), report).files["decode.csl"]
    assert shown in emitted
    assert 55 <= len(shown.splitlines()) <= 75
