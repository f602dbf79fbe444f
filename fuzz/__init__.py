"""Fuzzing of whatever takes text or bytes from outside: `python dev.py fuzz`.

A target takes bytes, gives them to the code as that gets them, and passes only where the code keeps its word: it takes
them in, or refuses them with its own error that says what is wrong; nothing is lost, and nothing else is raised. The
tests (tests/fuzz) try each target a few times, and again with every input that ever broke it (fuzz/found).
"""
