"""The program and the command of the page on several GPUs run; its header is one that is made."""

from pages import ROOT, blocks, commands, page

from meshc.cli import main
from meshc.ir.ops import batches, ranks

NAME = "docs/tensor-parallel.md"


def test_the_program_runs():
    (program,) = blocks(NAME, "python")
    exec(compile(program, NAME, "exec"), {})


def test_the_command_runs(capsys):
    (command,) = (line for line in commands(NAME) if line.startswith("meshc opt"))
    text = command.replace("FILE.meshir", str(ROOT / "examples" / "mlp.meshir")).replace('"', "")
    assert main(text.split()[1:]) == 0
    shown = capsys.readouterr()
    assert "ranks count = 2" in shown.out and "dealt-to-ranks" in shown.err


def test_the_header_is_that_of_a_golden():
    golden = (ROOT / "tests" / "passes" / "tensor_parallel" / "shared_key_heads.meshir").read_text()
    (header,) = (text for text in blocks(NAME, "") if text.startswith("dims"))
    shown = [line for line in header.splitlines() if line.startswith(("ranks", "part dim"))]
    assert [line for line in shown if "F_rank" not in line] == [
        line.strip() for line in golden.splitlines() if line.strip() in shown
    ]


def test_every_op_is_named():
    known = [cls.NAME for cls in (*ranks.RankOp.__subclasses__(), *_of_parts())]
    known += [batches.AppendTokens.NAME, batches.TokenCaches.NAME]
    assert [name for name in known if name and name not in page(NAME)] == []


def _of_parts():
    return [sub for cls in ranks.RankOp.__subclasses__() for sub in cls.__subclasses__()]
