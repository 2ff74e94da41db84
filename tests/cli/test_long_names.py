"""Names that no file system takes are refused in words, wherever a command takes a path."""

import pytest

from meshc.cli import main

NAME = "n" * 300
MODEL = "examples/matmul.mesh"


@pytest.mark.every_case
@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", NAME],
        ["compile", f"{NAME}.mesh"],
        ["compile", f"{NAME}.gguf"],
        ["compile", f"{NAME}.json"],
        ["compile", f"{NAME}.meshir"],
        ["compile", MODEL, "-o", NAME],
        ["compile", MODEL, "--device", f"{NAME}.toml"],
        ["run", NAME, "--prompt", "a"],
        ["run", MODEL, "--weights", NAME, "--prompt", "a"],
        ["opt", NAME],
        ["opt", "examples/relay.meshir", "-o", NAME],
        ["devices", f"{NAME}.toml"],
        ["sim", "run", NAME],
        ["sim", "suite", NAME],
    ],
    ids=lambda arguments: " ".join(arguments).replace(NAME, "NAME"),
)
def test_a_long_name_is_refused(arguments, capsys):
    assert main(arguments) in (1, 2)
    assert "error" in capsys.readouterr().err
