"""The host API of the appliance: compile jobs, runs, launchers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, SINGLE, exports

from meshc.sim.host.appliance import SdkCompiler, SdkLauncher, SdkRuntime
from meshc.support.diagnostics import MeshcError

PE = """
var out = @zeros([2]u32); var out_ptr: [*]u32 = &out;
fn run(k: u32) void { out[0] = k; out[1] = k + 1; sys.unblock_cmd_stream(); }
comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }
"""
HOST = """
import sys
import numpy as np
from cerebras.appliance import logger
from cerebras.appliance.pb.sdk.sdk_common_pb2 import MemcpyDataType, MemcpyOrder
from cerebras.sdk.client import SdkRuntime, sdk_utils
with SdkRuntime(sys.argv[1], simulator=True) as runner:
    runner.launch("run", np.uint32(int(open("number.txt").read())), nonblock=False)
    got = np.zeros(2, np.uint32)
    runner.memcpy_d2h(got, runner.get_id("out"), 0, 0, 1, 1, 2, streaming=False,
                      data_type=MemcpyDataType.MEMCPY_32BIT, order=MemcpyOrder.ROW_MAJOR,
                      nonblock=False)
logger.info("done")
print("got", got, file=open("result.txt", "w"))
print("finished", len(sys.argv))
"""
OPTIONS = "--arch=wse3 --fabric-dims=8,3 --fabric-offsets=4,1 --memcpy --channels=1 -o latest"


def compiled(folder: Path, pe: str = PE) -> str:
    """The artifact of a program that stores what it is given."""
    source = folder / "src"
    source.mkdir()
    names = exports(out="[*]u32", run="fn(u32)void")
    (source / "layout.csl").write_text(SINGLE.replace("EXPORTS", names), encoding="utf-8")
    (source / "pe.csl").write_text(PE_HEAD + pe, encoding="utf-8")
    with SdkCompiler(resource_cpu=4) as compiler:
        return compiler.compile(
            app_path=str(source), csl_main="layout.csl", options=OPTIONS, out_path=str(folder)
        )


def test_compile_and_run(tmp_path: Path) -> None:
    artifact = compiled(tmp_path)
    assert Path(artifact) == tmp_path / "latest"
    with SdkRuntime(artifact, simulator=True) as runner:
        runner.launch("run", np.uint32(5))
        got = np.zeros(2, np.uint32)
        runner.memcpy_d2h(got, runner.get_id("out") or 0, 0, 0, 1, 1, 2)
    assert list(got) == [5, 6]


def test_programs_with_errors_do_not_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MeshcError, match="does not compile"):
        compiled(tmp_path, PE.replace("k + 1", "k + nothing"))
    assert "nothing" in capsys.readouterr().err


def test_a_launcher_runs_staged_scripts(tmp_path: Path) -> None:
    artifact = compiled(tmp_path)
    (tmp_path / "host.py").write_text(HOST, encoding="utf-8")
    (tmp_path / "number.txt").write_text("41", encoding="utf-8")
    with SdkLauncher(artifact, simulator=True) as launcher:
        launcher.stage(str(tmp_path / "host.py"))
        launcher.stage(str(tmp_path / "number.txt"))
        said = launcher.run("cs_python host.py latest --cmaddr %CMADDR%")
        launcher.download_artifact("result.txt", str(tmp_path / "got" / "result.txt"))
        assert "finished 2" in said
        assert (tmp_path / "got" / "result.txt").read_text() == "got [41 42]\n"
        with pytest.raises(MeshcError, match="'false' failed"):
            launcher.run("false")
        with pytest.raises(MeshcError, match="no file 'x' to stage"):
            launcher.stage("x")
        with pytest.raises(MeshcError, match="written no file"):
            launcher.download_artifact("none", str(tmp_path / "none"))
    with pytest.raises(MeshcError, match="no compiled program"), SdkLauncher(str(tmp_path / "no")):
        pass
