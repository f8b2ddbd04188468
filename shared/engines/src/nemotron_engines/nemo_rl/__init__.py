"""NeMo-RL as an engine: find its checkout, write its config, check it, start its one driver, take its result.

NeMo-RL is no package of PyPI (the name there is an empty placeholder); it comes in a container or as a checkout. This
package never imports it: it starts programs of the checkout with the checkout's own interpreter.
"""
