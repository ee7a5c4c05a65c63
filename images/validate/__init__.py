"""``inv validate``: the gate on a machine that exists, with or without our image.

``host``     the machine at an ssh:// URL: asking, sending the tools, taking them away again
``judge``    what to expect of it, the run of the gate, the verdict, the validation statement
``report``   the table for people
``tasks``    the command
"""
