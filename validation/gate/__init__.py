"""The gate: checks that decide whether an image, or a machine, is what it should be.

Run with pytest and pytest-testinfra; see ``conftest`` for the options. Everything about the image under test
comes in ``expected.json``. A check is a test function with ``@check``; what it reads from the machine are
named commands in ``probes``, read by pure functions in ``readers`` and ``hygiene``.
"""
