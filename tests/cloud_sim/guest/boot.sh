#!/bin/sh
# Boots a machine of the chroot target: runs in mount, PID, UTS and IPC namespaces of its own, as their first
# process, and becomes the machine's init. $1: the machine's folder; $2: its lower layers.
set -eu
folder=$1

mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$2,upperdir=$folder/disk/upper,workdir=$folder/disk/work" "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm run/box run/sshd
for device in null,1,3 zero,1,5 full,1,7 random,1,8 urandom,1,9 tty,5,0; do
    number=${device#*,}
    mknod -m 666 "dev/${device%%,*}" c "${number%,*}" "${number#*,}"
done
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount --bind "$folder/shared" run/box
mount --bind run/box/hosts etc/hosts
# The kernel is the host's: what a build sets there must not reach it.
if [ -e proc/sysrq-trigger ]; then mount --bind dev/null proc/sysrq-trigger; fi
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind run/box/boot_id proc/sys/kernel/random/boot_id
hostname "$(cat run/box/hostname)"
pivot_root . .
umount -l .
# For the same reason: no kernel modules, clocks, raw devices or network settings.
exec setpriv --bounding-set=-sys_module,-sys_rawio,-sys_time,-net_admin,-syslog,-mac_admin \
    --inh-caps=-all -- /usr/bin/python3 /usr/local/lib/box/init.py
