"""Work on untrusted text in processes of their own, with limits on processor time and memory.

`child` is the side that works, `pool` the side that asks. Messages in both directions are a length (4 bytes, big
endian) and that many bytes; the first byte of a reply is its `ReplyKind`. The meaning of the rest is up to both sides.
"""
