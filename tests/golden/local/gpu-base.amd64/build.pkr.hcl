# gpu-base for the local cloud, amd64: made by `inv render`, do not edit.
# Ubuntu 24.04, NVIDIA 580.95.05 with open modules, DCGM 4, container toolkit.

packer {
  required_version = ">= 1.6.6"
}

variable "work_directory" {
  type        = string
  description = "Folder of this build: logs, evidence, results."
}

variable "image_name" {
  type = string
}

variable "build_id" {
  type = string
}

variable "build_user" {
  type    = string
  default = "packer"
}

variable "private_key_file" {
  type        = string
  description = "Private ed25519 key of this build's user."
}

variable "roles_directory" {
  type = string
}

variable "ansible_command" {
  type        = string
  description = "Absolute path of ansible-playbook."
}

variable "ansible_arguments" {
  type = list(string)
}

variable "ansible_environment" {
  type = list(string)
}

variable "gate_command" {
  type        = string
  description = "Shell command that runs the gate against GATE_HOST, GATE_PORT, GATE_USER."
}

variable "base_disk" {
  type        = string
  description = "The base disk (qcow2); it is only ever read."
}

variable "base_checksum" {
  type = string
}

variable "output_directory" {
  type = string
}

variable "seed_files" {
  type        = list(string)
  description = "user-data and meta-data of the NoCloud seed."
}

variable "serial_log" {
  type = string
}

variable "accelerator" {
  type    = string
  default = "kvm"
}

variable "accelerator_arguments" {
  type        = list(list(string))
  default     = [["-accel", "kvm"], ["-cpu", "host"]]
  description = "QEMU options of the accelerator, each with its value."
}

source "qemu" "image" {
  accelerator  = var.accelerator
  machine_type = "pc" # the cloud kernel has no AHCI driver: on q35 it would not see the seed
  cpus         = 2
  memory       = 4096
  headless     = true

  # An overlay on the base: nothing is copied, the base is never written.
  iso_url          = var.base_disk
  iso_checksum     = var.base_checksum
  disk_image       = true
  use_backing_file = true
  qemu_img_args {
    create = ["-F", "qcow2"] # QEMU 6.1 and newer refuse a backing file without its format
  }
  format          = "qcow2"
  disk_size       = "12G"
  disk_interface  = "virtio"
  disk_cache      = "unsafe" # a build that loses power is thrown away
  disk_discard    = "unmap"
  skip_compaction = true # the pipeline flattens and compresses

  output_directory = var.output_directory
  vm_name          = "disk.qcow2"

  cd_files = var.seed_files
  cd_label = "cidata"

  # Replaces Packer's own -netdev, which forwards the SSH port on all interfaces.
  net_device       = "virtio-net"
  vnc_bind_address = "127.0.0.1"
  host_port_min    = 20000
  host_port_max    = 29999
  qemuargs = concat(var.accelerator_arguments, [
    # Replaces Packer's own -machine, which names the accelerator without its options.
    ["-machine", "pc"],
    ["-netdev", "user,id=user.0,hostfwd=tcp:127.0.0.1:{{ .SSHHostPort }}-:22"],
    ["-serial", "file:${var.serial_log}"],
    ["-device", "virtio-rng-pci"],
    ["-vga", "none"], # drawing the console costs an emulated machine seconds of every boot
  ])

  communicator           = "ssh"
  ssh_username           = var.build_user
  ssh_private_key_file   = var.private_key_file
  ssh_timeout            = "10m"
  ssh_handshake_attempts = 200
  boot_wait              = "-1s"
  shutdown_command       = "sudo systemctl poweroff"
  shutdown_timeout       = "5m"
}

build {
  name    = "gpu-base"
  sources = ["source.qemu.image"]

  # Everything up to the gate: base, kernel, boot checks, site; one reboot; other kernels removed.
  provisioner "ansible" {
    playbook_file    = "${var.roles_directory}/image.yml"
    command          = var.ansible_command
    user             = var.build_user
    use_proxy        = false
    timeout          = "90m"
    ansible_env_vars = var.ansible_environment
    extra_arguments  = concat(["--private-key", var.private_key_file], var.ansible_arguments)
  }

  # The gate. A failed check stops the build here, before anything is captured.
  provisioner "shell-local" {
    environment_vars = [
      "GATE_HOST=${build.Host}",
      "GATE_PORT=${build.Port}",
      "GATE_USER=${build.User}",
    ]
    inline = [var.gate_command]
  }

  # The last step in Packer's open connection. Host keys, the build user and its sudoers file go at
  # power-off, by whoever asks for it: after that nobody can log in.
  provisioner "ansible" {
    playbook_file    = "${var.roles_directory}/generalise.yml"
    command          = var.ansible_command
    user             = var.build_user
    use_proxy        = false
    timeout          = "90m"
    ansible_env_vars = var.ansible_environment
    extra_arguments  = concat(["--private-key", var.private_key_file], var.ansible_arguments)
  }

  post-processor "manifest" {
    output     = "${var.work_directory}/packer-manifest.json"
    strip_path = false
  }
}
