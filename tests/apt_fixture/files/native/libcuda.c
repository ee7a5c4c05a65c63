/* gpu-image fixture: libcuda on a machine whose driver is not loaded. Codes: cuda.h, CUDA_ERROR_NO_DEVICE. */
#define NO_DEVICE 100

const char gpu_image_fixture[] = "gpu-image fixture: libcuda ${upstream}";

int cuInit(unsigned int flags) { return (void)flags, NO_DEVICE; }
int cuDeviceGetCount(int *count) { return *count = 0, NO_DEVICE; }
int cuGetErrorName(int error, const char **name)
{
	*name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : 0;
	return *name ? 0 : 1;
}
/* Works without a driver, as the real one: CUDA 13.0 for branch 580, by its own version. */
int cuDriverGetVersion(int *version) { return *version = ${cuda}, 0; }
