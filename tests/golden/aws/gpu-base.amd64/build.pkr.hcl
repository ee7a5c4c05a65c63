# gpu-base for AWS, amd64: made by `inv render`, do not edit.
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

variable "instance_type" {
  type = string
}

variable "availability_zone" {
  type        = string
  description = "Empty: any zone that has the type."
}

variable "subnet_id" {
  type        = string
  description = "Empty: a subnet of the default VPC."
}

variable "security_group_id" {
  type        = string
  description = "Lets in SSH from the site's addresses only; tagged, which Packer 1.6 cannot do with its own."
}

variable "ssh_interface" {
  type = string
}

variable "user_data_file" {
  type        = string
  description = "Makes the build's user, and ends the machine if nobody else does."
}

variable "expires" {
  type        = string
  description = "UTC time after which anybody may delete what this build made."
}

variable "poll_seconds" {
  type = number
}

variable "host_key_command" {
  type        = string
  description = "Shell command that writes the machine's host key to known_hosts; see images/clouds/aws/build_machine.py."
}

locals {
  tags = {
    "gpu-image:build-id" = var.build_id
    "gpu-image:expires"  = var.expires
    "gpu-image:family"   = "gpu-base"
    "Name"               = var.image_name
  }
}

source "amazon-ebs" "image" {
  region     = "us-east-1"
  source_ami = "ami-08b1fbb7014728d6c" # ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261101

  ami_name    = var.image_name
  ena_support = true

  # The boot mode is the base image's: this builder has no argument for it (packer-plugin-amazon#465).

  instance_type     = var.instance_type
  availability_zone = var.availability_zone
  subnet_id         = var.subnet_id
  ssh_interface     = var.ssh_interface
  user_data_file    = var.user_data_file

  # A machine that powers itself off ends; Packer's own stop before the capture is not that.
  shutdown_behavior           = "terminate"
  associate_public_ip_address = var.ssh_interface == "public_ip"

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_type           = "gp3"
    volume_size           = 12
    iops                  = 3000
    throughput            = 250
    delete_on_termination = true
  }

  # No key pair is made: user-data brings the build's own key.
  security_group_ids = [var.security_group_id]

  run_tags        = local.tags
  run_volume_tags = local.tags
  tags            = local.tags
  snapshot_tags   = local.tags

  communicator           = "ssh"
  ssh_username           = var.build_user
  ssh_private_key_file   = var.private_key_file
  ssh_timeout            = "15m"
  ssh_handshake_attempts = 200

  aws_polling {
    delay_seconds = var.poll_seconds
    max_attempts  = 480
  }
}

build {
  name    = "gpu-base"
  sources = ["source.amazon-ebs.image"]

  # Packer's own connection takes any host key; whoever connects after this takes only the machine's.
  provisioner "shell-local" {
    environment_vars = [
      "MACHINE=${build.ID}",
      "HOST=${build.Host}",
      "PORT=${build.Port}",
    ]
    inline = [var.host_key_command]
  }

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
