"""How expand-tasks makes families of tasks: what tasks need of values, products, attention."""
