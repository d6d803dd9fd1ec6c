"""Parsers of the small languages that Spark reads inside of literals: schemas, patterns, formats, paths.

Spark takes each of these as a text and parses it by itself, in Java and partly in Python. A text that reaches it
unread is a second way into the engine: a schema may name a class to load, a pattern may never stop, a width may ask
for gigabytes. So the gate reads each of them with a grammar of its own, a strict subset of Spark's, and refuses the
rest. A parser here raises `LiteralError` and nothing else, in time linear in the text.
"""
