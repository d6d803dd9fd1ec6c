"""The DAG language: from YAML text to a `model.dag.Dag`, or to every problem with its place."""
