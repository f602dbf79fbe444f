"""Hosts: each translates in, calls dispatch or deliver, translates out; and `runtime`, which wires their parts.

Imported by the command line, `runonce.client` and `runonce.testing`; imports everything below it.
"""
