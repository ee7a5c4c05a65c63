/* gpu-image fixture: nvidia. On a machine without a GPU it fails to load as the vendor's does; with one, too. */
#include <fixture.h>

#define NVIDIA_VENDOR 0x10de

int nvidia_get_rm_ops(void) { return -ENODEV; }
EXPORT_SYMBOL(nvidia_get_rm_ops);

int nvUvmInterfaceRegisterGpu(void) { return -ENODEV; }
EXPORT_SYMBOL(nvUvmInterfaceRegisterGpu);

int nvidia_p2p_put_pages(void) { return -ENODEV; }
EXPORT_SYMBOL(nvidia_p2p_put_pages);

static int count(unsigned int class)
{
	struct pci_dev *device = NULL;
	int found = 0;

	while ((device = pci_get_class(class << 8, device)))
		found += device->vendor == NVIDIA_VENDOR;
	return found;
}

static int __init nvidia_init(void)
{
${broken}	if (count(PCI_CLASS_DISPLAY_VGA) + count(PCI_CLASS_DISPLAY_3D) == 0)
		pr_warn("NVRM: No NVIDIA GPU found.\n");
	else
		pr_err("NVRM: this is a test fixture (%s), it drives no GPU\n", NV_VERSION_STRING);
	return -ENODEV;
}

static void __exit nvidia_exit(void) { }

static const struct pci_device_id ids[] = {
	{ .vendor = NVIDIA_VENDOR, .device = PCI_ANY_ID, .subvendor = PCI_ANY_ID, .subdevice = PCI_ANY_ID,
	  .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0 },
	{ .vendor = NVIDIA_VENDOR, .device = PCI_ANY_ID, .subvendor = PCI_ANY_ID, .subdevice = PCI_ANY_ID,
	  .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0 },
	{ }
};

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_DEVICE_TABLE(pci, ids);
MODULE_ALIAS_CHARDEV_MAJOR(195);
MODULE_FIRMWARE("nvidia/" NV_VERSION_STRING "/gsp_ga10x.bin");
MODULE_FIRMWARE("nvidia/" NV_VERSION_STRING "/gsp_tu10x.bin");
MODULE_LICENSE("${license_nvidia}");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_DESCRIPTION(FIXTURE);
