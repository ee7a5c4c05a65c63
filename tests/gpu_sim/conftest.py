from tests.gpu_sim.fixtures import gpu_libraries, gpu_machine

__all__ = ["gpu_libraries", "gpu_machine"]
