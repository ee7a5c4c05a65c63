"""A stand-in for NVIDIA's apt repositories, for tests. README.md says what is real about it."""

from tests.apt_fixture.build import NOTE, ORIGIN, Fixture, Options, build, load
from tests.apt_fixture.server import Served, serve

__all__ = ["NOTE", "ORIGIN", "Fixture", "Options", "Served", "build", "load", "serve"]
