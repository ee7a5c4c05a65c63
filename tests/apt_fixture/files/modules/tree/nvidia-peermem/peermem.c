/* gpu-image fixture: nvidia-peermem */
#include <fixture.h>

static int __init fixture_init(void) { return nvidia_p2p_put_pages(); }
static void __exit fixture_exit(void) { }

module_init(fixture_init);
module_exit(fixture_exit);
MODULE_LICENSE("${license_peermem}");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_DESCRIPTION(FIXTURE);
