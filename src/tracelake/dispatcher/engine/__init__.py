"""The transaction engine: the only code that changes task state.

One direction: a call (`calls`) joins a batch (`group_commit`, `lanes`). The batch is one transaction (`transaction`),
which locks the tasks, lets each call decide on its locked task, and collects the decisions in one plan (`plan`). The
writer (`writer`) writes the plan, routes its events (`routing`), hands out places (`limits`) and keeps the depths of
queues (`pressure`). The statements are in `tables`. `catch_up` shows stored events to edges that fell behind.
"""
