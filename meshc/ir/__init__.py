"""The IR: types, layouts, the mesh, ops of three levels, builder, rewriter, parser and printer."""
