/* gpu-image fixture: nvidia-drm */
#include <fixture.h>

static int __init fixture_init(void) { return nvKmsKapiGetFunctionsTable(); }
static void __exit fixture_exit(void) { }

module_init(fixture_init);
module_exit(fixture_exit);
MODULE_LICENSE("${license_drm}");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_DESCRIPTION(FIXTURE);
