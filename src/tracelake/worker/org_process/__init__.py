"""The Spark processes of orgs, as their worker sees them.

`pool` decides which org has a process, `launch` starts one, `process` feeds it with attempts and ends it, `broker` does
for an attempt what needs a credential, `process_tree` measures the memory of a process and its children. The code that
runs inside such a process is in `tracelake.spark.child`.
"""
