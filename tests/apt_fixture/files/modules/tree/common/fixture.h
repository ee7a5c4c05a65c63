/* gpu-image fixture: ${name} ${version}. Modules with the names, versions, licences and links of NVIDIA's, which drive nothing. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <linux/errno.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/printk.h>

#define NV_VERSION_STRING "${upstream}"
#define FIXTURE "gpu-image fixture, no driver"

/* What the modules take from each other, so that depmod sees the vendor's dependencies. */
int nvidia_get_rm_ops(void);
int nvUvmInterfaceRegisterGpu(void);
int nvidia_p2p_put_pages(void);
int nvKmsKapiGetFunctionsTable(void);

#endif
