"""`trace udf test`: one run of a function against samples, without a stack.

- `samples`: files of rows that stand for datasets. `sample_task`: the task that the function gets.
- `task_calls`: answers the function's calls. `sample_queries`: the real Query Service over the samples.
- `memory_objects`, `object_requests`: an object store in memory. `local_upstream`: leads requests to these parts.
- `trial`: the run, from the archive to its report. `verdict`: what a stack would do with the results.

The sandbox, the archive checks, the limits and the way out are the runner's (`tracelake.runner`); the gate and the
engine are the Query Service's (`tracelake.query`). What is different here: nothing is signed by a key of the platform,
signatures of the object store are not computed again, and nothing outlives the command.
"""
