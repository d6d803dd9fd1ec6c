"""The DAG that most tests of pressure use."""

# src -> make (bulk) -> step -> slow (at most 10 ready); beside it other -> free, which nothing can stop.
PIPE = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: make, activation: reactive, operator: noop, inputs: [{from: {job: src}}], priority: bulk}
  - {name: step, activation: reactive, operator: noop, inputs: [{from: {job: make}}]}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: step}}], max_queue_depth: 10}
  - {name: other, activation: source, source: {kind: manual}}
  - {name: free, activation: reactive, operator: noop, inputs: [{from: {job: other}}]}
"""
