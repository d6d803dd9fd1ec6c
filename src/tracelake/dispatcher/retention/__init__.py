"""What is kept for a while and then removed: `history` of calls and attempts, `versions` that nobody goes back to.

What current state needs is never removed. The tasks of every node that a version has are the memory of routing, and the
promise of one task per unit and revision: they stay, however old they are.
"""
