"""Called by Packer's ``shell-local`` before anything else connects to the build machine.

    HOST=… PORT=… MACHINE=i-… python -m images.clouds.aws.build_machine --region R --known-hosts FILE …

Demands IMDSv2 of the machine (Packer 1.6 cannot ask for it at launch), and writes the host key that the
machine printed on its console to FILE: Packer itself takes any key, Ansible and the gate take only this one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from images import console
from images.clouds.aws import api, machine
from images.clouds.aws.api import AwsError, explained
from images.errors import ExitCode, UserError

CONSOLE_SECONDS = 900.0  # without a serial console that is live, AWS posts it after some minutes


def prepare(
    machine_id: str, region: str, *, host: str, port: int, known_hosts: Path, log: Path, poll: float
) -> int:
    """See the module; returns the number of host keys. Raises ``UserError``."""
    with explained(f"demanding IMDSv2 of {machine_id}"):
        api.client("ec2", region).modify_instance_metadata_options(
            InstanceId=machine_id, HttpTokens="required", HttpEndpoint="enabled"
        )
    deadline = time.monotonic() + CONSOLE_SECONDS
    while True:
        text = machine.console(machine_id, region)
        log.write_text(text)
        if keys := console.host_keys(text):
            known_hosts.write_text(console.known_hosts(keys, host=host, port=port))
            return len(keys)
        if time.monotonic() > deadline:
            raise UserError(
                f"no SSH host key on the console of {machine_id}", hint=f"see {log}", code=ExitCode.FAILED
            )
        time.sleep(poll)  # AWS posts the console when it likes; until the deadline above


def main() -> int:
    """Reads the options, prepares, says how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--region", required=True)
    parser.add_argument("--known-hosts", type=Path, required=True)
    parser.add_argument("--console-log", type=Path, required=True)
    parser.add_argument("--poll", type=float, required=True)
    options = parser.parse_args()
    count = prepare(
        os.environ["MACHINE"],
        options.region,
        host=os.environ["HOST"],
        port=int(os.environ["PORT"]),
        known_hosts=options.known_hosts,
        log=options.console_log,
        poll=options.poll,
    )
    print(f"host key from the console: {count} known")
    return ExitCode.DONE


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (AwsError, UserError) as error:
        sys.exit(f"{error.message}\n{error.hint or ''}")
