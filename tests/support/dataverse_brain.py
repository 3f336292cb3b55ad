"""Scripted engines for the crash tests of Dataverse: one that asks a person and goes on with the answer."""

from __future__ import annotations

import json

from operator_core.scripted import Brain, Reply, Turn
from tests.support.task_brain import blocked, done, run, task_brain

__all__ = ["ANSWER", "asks"]

ANSWER = "Take the blue one."


def asks() -> Brain:
    """It is blocked until :data:`ANSWER` is in its conversation."""

    def worker(turn: Turn) -> Reply:
        if ANSWER not in json.dumps(turn.messages):
            return blocked("which colour?")
        return done() if "echo hello" in json.dumps(turn.messages) else run("printf 'echo hello\\n' > hello")

    return task_brain(worker)
