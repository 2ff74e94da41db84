"""The example of docs/cuda-gpus.md runs, and its table has every form."""

from pages import blocks, page

from meshc.backends.cuda.kernels.collective.kernel import FORMS


def test_the_example_runs():
    (text,) = blocks("docs/cuda-gpus.md", "python")
    exec(compile(text, "docs/cuda-gpus.md", "exec"), {})


def test_every_form_is_in_the_table():
    lines = page("docs/cuda-gpus.md").splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(FORMS)
