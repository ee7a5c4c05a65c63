/* gpu-image fixture: nvidia-modeset */
#include <fixture.h>

int nvKmsKapiGetFunctionsTable(void) { return -ENODEV; }
EXPORT_SYMBOL(nvKmsKapiGetFunctionsTable);

static int __init fixture_init(void) { return nvidia_get_rm_ops(); }
static void __exit fixture_exit(void) { }

module_init(fixture_init);
module_exit(fixture_exit);
MODULE_LICENSE("${license_modeset}");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_DESCRIPTION(FIXTURE);
