"""AWS in a box: a stand-in for an AWS account, for tests and for trying the project without one.

What is real: Packer, boto3, Ansible, SSH, the production template and the production code, TLS, and, with
the VM target, machines, disks and cloud-init's EC2 data source. What is a stand-in: the EC2 API (moto
in this process, with the gaps that ``account.py`` lists) and, with the chroot target, the machines.
"""
