"""Finds mitogen's strategy in the Python that runs Ansible, wherever its environment lies.

Ansible takes a folder of strategy plugins, and mitogen's lies below a folder named after the Python version.
"""

import ansible_mitogen.loaders
import ansible_mitogen.strategy

Linear = ansible_mitogen.loaders.strategy_loader.get("linear", class_only=True)


class StrategyModule(ansible_mitogen.strategy.StrategyMixin, Linear):
    """The linear strategy, with tasks sent through mitogen."""
