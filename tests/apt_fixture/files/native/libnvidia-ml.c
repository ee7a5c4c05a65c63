/* gpu-image fixture: libnvidia-ml on a machine whose driver is not loaded. Codes: nvml.h. */
#define UNINITIALIZED 1
#define DRIVER_NOT_LOADED 9

const char gpu_image_fixture[] = "gpu-image fixture: libnvidia-ml ${upstream}";

int nvmlInit_v2(void) { return DRIVER_NOT_LOADED; }
int nvmlInitWithFlags(unsigned int flags) { return (void)flags, DRIVER_NOT_LOADED; }
int nvmlShutdown(void) { return UNINITIALIZED; }
int nvmlSystemGetDriverVersion(char *version, unsigned int length) { return (void)version, (void)length, UNINITIALIZED; }
const char *nvmlErrorString(int result) { return result == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error"; }
