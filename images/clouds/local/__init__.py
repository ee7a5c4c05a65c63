"""The local cloud: a disk image built and booted by QEMU on the operator's own machine."""

from images.clouds import Cloud
from images.clouds.local.adaptor import LocalCloud

cloud: Cloud = LocalCloud()
