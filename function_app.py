"""Hands the discovered jobs to the Functions host; nothing else."""

from pathlib import Path

from runonce.hosts.functions import build

app = build(Path(__file__).parent)
