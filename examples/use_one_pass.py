"""Run single passes of meshc on modules of your own and read what they remark.

    python examples/use_one_pass.py

The first module has a transpose, as one would write attention scores; eliminate-transpose folds
it into the product, which contracts dims by name. The second already has layouts; place-interleave
orders its cores so that a step of the product's rings is at most two hops.
"""

import meshc

SCORES = """\
module @scores level(graph) {
  dims L = 8, S = 8, E = 12
  func @main(in %x: f32[L, E], weight %w: f32[S, E]) -> (f32[L, S]) {
    %t = graph.transpose %w {dims = [E, S]} : f32[E, S]
    %s = graph.matmul %x, %t {contract = [E]} : f32[L, S]
    graph.return %s
  }
}
"""

LAID_OUT = """\
module @scores level(mesh) holds(partitioned) {
  dims L = 8, S = 8, E = 12
  rows dim = L, capacity = L
  mesh y = 4, x = 5
  func @main(in %x: f32[L, E]<L_y%:2 E_x:3>, weight %w: f32[S, E]<S_x:2 E_y>>x:3>) \
-> (f32[L, S]<L_y%:2 S_x:2>) {
    %s = mesh.gemm %x, %w {contract = [E], axis = x} : f32[L, S]<L_y%:2 S_x:2>
    mesh.return %s
  }
}
"""


def main() -> None:
    """Print each module after its pass, then the remarks of both."""
    report = meshc.Diagnostics()
    for text, step in ((SCORES, meshc.EliminateTranspose()), (LAID_OUT, meshc.PlaceInterleave())):
        module = meshc.parse(text, "scores")
        module = meshc.PassManager([step]).run(module, report)
        print(meshc.print_module(module))
    for message in report.messages:
        print(message.render())


if __name__ == "__main__":
    main()
