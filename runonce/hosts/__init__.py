"""Hosts: each translates in, calls dispatch, translates out."""
