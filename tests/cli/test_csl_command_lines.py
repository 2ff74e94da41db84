"""What `meshc compile --target csl` refuses: in words, with exit code 1, and nothing written."""

import pytest

from meshc.cli import main

PRODUCT = """model product(M={m}, K={k}, N=9) {{
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "sizes", "said"),
    [
        (["--algo", "gemm=strassen"], (8, 13), "--algo gemm cannot be 'strassen'"),
        (["--algo", "gemm"], (8, 13), "--algo gemm cannot be ''"),
        (["--algo", "="], (8, 13), "--algo cannot be '='"),
        (["--algo", "all_reduce=k_tree:0"], (8, 13), "cannot be 'k_tree:0'"),
        (["--mesh", "9999x2"], (8, 13), "violates P of PLMR"),
        (["--mesh", "0x2"], (8, 13), "'0x2' is no mesh"),
        (["--mesh", "99999999999999999999x2"], (8, 13), "is no mesh"),
        (["--mesh", "1x128", "--algo", "all_reduce=tree"], (1, 256), "violates R of PLMR"),
        ([], (8, 0), "dim 'K' is 0"),
        ([], (0, 13), "dim 'M' is 0"),
        ([], (4000, 4000), "violates M of PLMR"),
        (["--dtype", "f64"], (8, 13), "--dtype cannot be 'f64'"),
        (["--device", "h100"], (8, 13), "error[csl-device]"),
        (["--result", "root"], (8, 13), "--result cannot be 'root'"),
    ],
)
def test_refusals(words, sizes, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    m, k = sizes
    (tmp_path / "p.mesh").write_text(PRODUCT.format(m=m, k=k), encoding="utf-8")
    usual = {"--device": "wse2", "--mesh": "2x2"}
    given = [word for flag, value in usual.items() if flag not in words for word in (flag, value)]
    assert main(["compile", "p.mesh", "--target", "csl", *given, *words, "-o", "out"]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["p.mesh"]
