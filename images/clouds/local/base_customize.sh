#!/bin/sh
# Runs natively on the operator's machine as mmdebstrap's customize hook, with the new root as $1.
# From the caller: ROOT_UUID and ESP_ID (file systems), KERNELS (locked packages, NAME=VERSION ...).
# shellcheck disable=SC2154
set -eu
root=$1

# What the virtual machine would have to download: the locked kernel. Its cache holds nothing else.
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get clean
# shellcheck disable=SC2086  # one word per package
apt-get --yes --quiet=2 --no-install-recommends --download-only install $KERNELS
unset APT_CONFIG
# apt's cache of its lists: its first call in the machine would spend 25 s on making it.
chroot "$root" apt-cache gencaches

# Nothing of the machine that bootstraps.
rm -f "$root"/etc/ssh/ssh_host_* "$root"/var/lib/dbus/machine-id "$root"/etc/.resolv.conf.*
rm -f "$root"/initrd.img.old "$root"/vmlinuz.old
echo localhost >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"

mkdir -p "$root/boot/efi" "$root/boot/grub" "$root/etc/default/grub.d"
cat >"$root/etc/fstab" <<END
UUID=$ROOT_UUID / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1
UUID=$ESP_ID /boot/efi vfat umask=0077 0 0
END

cat >"$root/etc/cloud/cloud.cfg.d/10-local.cfg" <<END
# No locales package: without this cloud-init reports an error. One kind of host key is enough. sudo asks for
# the machine's own name, and where nothing answers it waits 9 s for name servers.
datasource_list: [NoCloud, ConfigDrive, None]
locale: false
ssh_genkeytypes: [ed25519]
manage_etc_hosts: localhost
apt: {preserve_sources_list: true}
system_info: {network: {renderers: [networkd]}}
END
chroot "$root" systemctl --quiet enable systemd-networkd.service systemd-resolved.service ssh.service

# Caches of the dynamic linker and the like are fresh: no need to make them again on the first boot.
touch "$root/etc/.updated" "$root/var/.updated"

# The boot menu: on the serial port, without a pause.
cat >"$root/etc/default/grub.d/50-serial.cfg" <<END
GRUB_TIMEOUT=0
GRUB_RECORDFAIL_TIMEOUT=0
GRUB_CMDLINE_LINUX="console=tty0 console=ttyS0,115200 consoleblank=0"
GRUB_TERMINAL="console serial"
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
END
# update-grub cannot look at a disk from here, so the first configuration is written by hand.
kernel=$(cd "$root/boot" && echo vmlinuz-*)
cat >"$root/boot/grub/grub.cfg" <<END
serial --unit=0 --speed=115200
terminal_input console serial
terminal_output console serial
set timeout=0
menuentry "Debian GNU/Linux" {
	search --no-floppy --fs-uuid --set=root $ROOT_UUID
	linux /boot/$kernel root=UUID=$ROOT_UUID ro console=tty0 console=ttyS0,115200 consoleblank=0
	initrd /boot/initrd.img-${kernel#vmlinuz-}
}
END

# GRUB for BIOS: its modules, and a core that finds them by the file system's UUID.
cp -r "$root/usr/lib/grub/i386-pc" "$root/boot/grub/"
# shellcheck disable=SC2016  # GRUB expands $root
printf 'search.fs_uuid %s root\nset prefix=($root)/boot/grub\n' "$ROOT_UUID" >"$root/boot/grub/early.cfg"
chroot "$root" grub-mkimage -O i386-pc -o /boot/grub/i386-pc/core.img -c /boot/grub/early.cfg \
	-p /boot/grub biosdisk part_gpt ext2 search_fs_uuid normal configfile linux serial terminal
rm "$root/boot/grub/early.cfg"
