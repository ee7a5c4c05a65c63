"""Assembles the task collections that live beside the modules they call; no logic here."""

from __future__ import annotations

from invoke.collection import Collection

from benchmarks.tasks import collection as benchmarks
from images.manifest.tasks import collection as manifest
from images.matrix import collection as matrix
from images.tasks import collection as images
from images.validate.tasks import collection as validate
from tests.tasks import collection as tests

ns = Collection()
for tasks in (images(), matrix(), validate(), tests(), benchmarks()):
    for task in tasks.tasks.values():
        ns.add_task(task)
ns.add_collection(manifest(), name="manifest")
