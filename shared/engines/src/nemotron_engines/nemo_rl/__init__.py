"""NeMo-RL as an engine: find its checkout, write and check its config, run its driver, and convert the result.

NeMo-RL is not on PyPI (the package of that name is an empty placeholder); it comes in a container or as a checkout.
This package never imports it: it runs programs of the checkout with the checkout's own interpreter.
"""
