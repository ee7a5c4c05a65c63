"""The boot checks: scripts baked into the image, and the runner that judges the machine by them.

``boot-checks.d/`` holds the checks, one executable each; adding one is adding a file there
(``docs/boot-checks.md``). Everything here runs on the machine with Python >= 3.10 and nothing but its
standard library, and lies there under ``/usr/lib/gpu-image``.

``check``       what a check script is written with
``systemd``     reader of ``systemctl show``
``gpus``        what the GPU checks start from; ``gpu_answers`` and ``gpu_memory``: what each does then
``image``       what the image says about itself (image.json), and where everything lies
``supervisor``  runs programs side by side and always comes back
``results``     what a script printed, made into a result; the verdict over all results
``bundle``      digest of everything under ``/usr/lib/gpu-image``
``report``      the report, as JSON, as text and on the serial console
``hooks``       what a site does with an unhealthy machine, once a boot
``runner``      the command ``gpu-boot-check``
"""
