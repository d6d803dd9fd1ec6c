"""Lifecycle calls: each is a pure decision on a locked task.

`call` says what every call declares and what it is given. The others are the calls themselves: `claim`, `heartbeat`,
`events`, `completion`, `buffer_publish`, `create`, and what people do to a task (`task_actions`).
"""
